"use strict";
// Lines with bands, drawn as SVG: no library, nothing to fetch.
const initmem = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const COLORS = 16; // eight for recipes, six for ordered values, two for optimizers without a schedule
  const MARK = 5; // radius of the largest marker
  const DASHES = ["", "7 4", "9 3 2 3", "2 4"];
  const MARKERS = [
    "M-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0-7.2 0Z",
    "M-3.3-3.3H3.3V3.3H-3.3Z",
    "M0-4.4 4 3H-4Z",
    "M0-4.6 4.6 0 0 4.6-4.6 0Z",
    "M0 4.4 4-3H-4Z",
    "M-1.4-4.2H1.4V-1.4H4.2V1.4H1.4V4.2H-1.4V1.4H-4.2V-1.4H-1.4Z",
    "M-3.8-3.8 0-1.6 3.8-3.8 1.6 0 3.8 3.8 0 1.6-3.8 3.8-1.6 0Z",
    "M0-5 1.3-1.5 5-1.5 2 .8 3 4.4 0 2.3-3 4.4-2 .8-5-1.5-1.3-1.5Z",
  ];

  function svg(name, attributes = {}, children = []) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function html(name, attributes = {}, children = []) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  // A look is [hue, shade, marker, dashes]; for lines that are only told apart, their number.
  const look = (style) => (typeof style === "number" ? [style, 0, style, style] : style);

  function paint(node, style) {
    const [hue, shade] = look(style);
    node.classList.add("series", `s${hue % COLORS}`);
    if (!shade) return node;
    node.classList.add(shade < 0 ? "deep" : "pale");
    node.style.setProperty("--share", `${100 * Math.abs(shade)}%`);
    return node;
  }

  function short(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size < 1e-3 || size >= 1e6) return value.toExponential(size >= 1e6 || value.toPrecision(1) == value ? 0 : 1);
    return String(Number(value.toPrecision(3)));
  }

  // Ticks are round numbers: all their digits count, as between 0.6012 and 0.6014.
  const tickText = (value) => (value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6) ? String(value) : short(value));

  // -- axes ---------------------------------------------------------------------------------------------

  function axis(low, high, log, from, to, whole = false) {
    const f = log ? Math.log10 : (v) => v;
    const [a, b] = [f(low), f(high)];
    const place = (v) => from + ((f(v) - a) / (b - a || 1)) * (to - from);
    return { low, high, log, place, ticks: log ? decades(low, high) : steps(low, high, Math.abs(to - from), whole) };
  }

  function steps(low, high, room, whole) {
    const wanted = Math.max(3, Math.min(7, Math.round(room / 48)));
    const raw = (high - low) / wanted || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const found = [];
    const step = Math.max(whole ? 1 : 0, power * [1, 2, 2.5, 5, 10].find((m) => m * power >= raw * 0.999));
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1) found.push(Number((k * step).toPrecision(10)));
    return found;
  }

  function decades(low, high) {
    const found = [];
    const few = Math.log10(high / low) < 1.6;
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e += 1) {
      for (const m of few ? [1, 2, 5] : [1]) found.push(Number((m * 10 ** e).toPrecision(6)));
    }
    const inside = found.filter((v) => v >= low * 0.999 && v <= high * 1.001);
    const every = Math.ceil(inside.length / 7);
    return inside.filter((_, i) => i % every === 0);
  }

  // The limits of an axis that shows all values, with a little room; of a log axis, so many decades at most.
  function domain(values, log, decades = Infinity) {
    let known = values.filter((v) => v !== null && v !== undefined && Number.isFinite(v) && (!log || v > 0));
    if (!known.length) return [log ? 0.1 : 0, 1];
    let low = Math.min(...known), high = Math.max(...known);
    if (log) return [Math.max(low, high / 10 ** decades) / 1.25, high * 1.25];
    if (low === high) return [low - 0.5, high + 0.5];
    const room = 0.04 * (high - low);
    return [low >= 0 && low < room * 3 ? Math.min(0, low) : low - room, high + room];
  }

  // -- one chart ----------------------------------------------------------------------------------------
  // spec: {title, x: {title, log, limits}, y: {title, log, limits}, ceiling, lines: [{label, name, style, points}]}
  // a point: {x, y, low, high, open, beyond, words: [strings], href}

  function draw(host, spec) {
    const width = Math.max(260, Math.round(host.clientWidth)), height = Math.round(Math.min(400, Math.max(240, width * 0.58)));
    const strip = spec.ceiling ? 22 : 0;
    const names = spec.x.names || [], longest = Math.max(0, ...names.map((name) => name.length));
    const box = { right: width - 10, top: 8 + strip, bottom: height - 44 - Math.min(70, 3.5 * longest) };
    const y = axis(...spec.y.limits, spec.y.log, box.bottom, box.top);
    const letters = Math.max(...y.ticks.map((v) => tickText(v).length), strip ? "never".length : 0);
    box.left = Math.max(50, 28 + 7 * letters); // the title of the axis, then its longest label
    if (names.length) box.left = Math.max(box.left, 6 * names[0].length); // it is slanted, and ends at its tick
    const x = axis(...spec.x.limits, spec.x.log, box.left + 6, box.right - 6, spec.x.whole);
    if (names.length) x.ticks = names.map((_, i) => i + 1);
    const crowded = spec.lines.filter((line) => line.points.some((p) => p.y !== null)).length > (y.log ? 1 : 3) ? { class: "crowded" } : {}; // bands on bands hide the lines, and those around zero fill a log axis: see the one that is pointed at
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", ...crowded });
    host.setAttribute("role", "img");
    host.setAttribute("aria-label", described(spec));
    if (strip) {
      root.append(
        svg("rect", { class: "strip", x: box.left, y: 4, width: box.right - box.left, height: strip }),
        svg("text", { class: "tick", x: box.left - 6, y: 4 + strip * 0.7, "text-anchor": "end" }, ["never"]),
      );
    }
    drawAxes(root, box, x, y, spec, width, height);
    const dots = [];
    const hidden = svg("clipPath", { id: `clip-${(draw.count = (draw.count || 0) + 1)}` }, [
      svg("rect", { x: box.left, y: 0, width: box.right - box.left, height: box.bottom + MARK }),
    ]);
    root.append(svg("defs", {}, [hidden]));
    for (const line of spec.lines) root.append(drawLine(line, x, y, box, strip, dots, hidden.id, names.length > 0));
    const here = svg("circle", { class: "here", r: 8, visibility: "hidden" });
    root.append(here);
    host.replaceChildren(root);
    attend(host, root, dots, here, width);
  }

  function described(spec) {
    const at = (p) => (typeof p.level === "string" ? p.level : short(p.x));
    const ends = spec.lines.map((line) => {
      const there = line.points.filter((p) => p.y !== null && p.y !== undefined);
      if (!there.length) return `${line.label}: no values`;
      const [a, b] = [there[0], there[there.length - 1]];
      return `${line.label}: ${short(a.y)} at ${at(a)} to ${short(b.y)} at ${at(b)}`;
    });
    return `${spec.title ? `${spec.title}. ` : ""}${spec.y.title} against ${spec.x.title}. ${ends.join("; ")}. Arrow keys read the points.`;
  }

  function drawAxes(root, box, x, y, spec, width, height) {
    for (const v of y.ticks) {
      const at = y.place(v);
      root.append(
        svg("line", { class: "grid", x1: box.left, x2: box.right, y1: at, y2: at }),
        svg("text", { class: "tick", x: box.left - 6, y: at + 4, "text-anchor": "end" }, [tickText(v)]),
      );
    }
    for (const v of x.ticks) {
      const at = x.place(v);
      root.append(
        svg("line", { class: "frame", x1: at, x2: at, y1: box.bottom, y2: box.bottom + 4 }),
        spec.x.names?.length
          ? svg("text", { class: "tick", transform: `translate(${at} ${box.bottom + 14}) rotate(-30)`, "text-anchor": "end" }, [spec.x.names[v - 1]])
          : svg("text", { class: "tick", x: at, y: box.bottom + 17, "text-anchor": "middle" }, [tickText(v)]),
      );
    }
    root.append(
      svg("line", { class: "frame", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
      svg("text", { class: "title", x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, [spec.x.title]),
      svg("text", { class: "title", transform: `translate(12 ${(box.top + box.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, [spec.y.title]),
    );
  }

  // Without an order of x (`bare`) points have error bars and no line.
  function drawLine(line, x, y, box, strip, dots, clip, bare) {
    const group = paint(svg("g", { "data-name": line.label }), line.style), [, , marker, dashes] = look(line.style);
    const lowest = y.log ? y.low : -Infinity;
    const up = (v) => y.place(Math.max(v, lowest)).toFixed(1);
    const inner = svg("g", { "clip-path": `url(#${clip})` });
    const banded = (p) => p.y !== null && p.low !== null && p.high !== null && p.low !== undefined;
    for (const p of bare ? line.points.filter(banded) : []) inner.append(svg("path", { class: "mean", d: `M${x.place(p.x).toFixed(1)} ${up(p.low)}V${up(p.high)}` }));
    for (const run of bare ? [] : pieces(line.points, banded)) {
      const there = run.map((p) => `${x.place(p.x).toFixed(1)} ${up(p.high)}`);
      const back = run.map((p) => `${x.place(p.x).toFixed(1)} ${up(p.low)}`).reverse();
      inner.append(svg("path", { class: "band", d: `M${[...there, ...back].join("L")}Z` }));
    }
    for (const run of bare ? [] : pieces(line.points, (p) => p.y !== null && (!y.log || p.y > 0))) {
      const d = run.map((p) => `${x.place(p.x).toFixed(1)} ${up(p.y)}`).join("L");
      const dash = DASHES[dashes % DASHES.length];
      inner.append(svg("path", { class: line.marked === false ? "mean thin" : "mean", d: `M${d}`, ...(dash ? { "stroke-dasharray": dash } : {}) }));
    }
    group.append(inner);
    const marked = line.points.length <= 12;
    const every = Math.ceil(line.points.length / 8);
    line.points.forEach((p, i) => {
      const beyond = p.y === null && p.beyond;
      if ((p.y === null && !beyond) || (y.log && p.y !== null && p.y < y.low)) return;
      const [px, py] = [x.place(p.x), beyond ? 4 + strip / 2 : y.place(p.y)];
      if (beyond || (line.marked !== false && (marked || i % every === 0))) {
        const open = p.open || beyond ? " open" : "";
        inner.append(svg("path", { class: `dot${open}`, d: MARKERS[marker % MARKERS.length], transform: `translate(${px.toFixed(1)} ${py.toFixed(1)})` }));
      }
      dots.push({ px, py, point: p, line, index: i });
    });
    return group;
  }

  function pieces(points, keep) {
    const found = [];
    let run = [];
    for (const p of points) {
      if (keep(p)) run.push(p);
      else if (run.length) {
        found.push(run);
        run = [];
      }
    }
    if (run.length) found.push(run);
    return found;
  }

  // -- pointing -----------------------------------------------------------------------------------------

  function attend(host, root, dots, here, width) {
    let current = null;
    const show = (dot) => {
      current = dot;
      here.setAttribute("cx", dot.px);
      here.setAttribute("cy", dot.py);
      here.setAttribute("visibility", "visible");
      dim(root, dot.line.label);
      const frame = root.getBoundingClientRect(), scale = frame.width / width;
      tip.show([dot.line.name, ...dot.point.words], frame.left + dot.px * scale, frame.top + dot.py * scale);
    };
    const hide = () => {
      current = null;
      here.setAttribute("visibility", "hidden");
      dim(root, null);
      tip.hide();
    };
    host.onpointermove = (event) => {
      const frame = root.getBoundingClientRect(), scale = width / frame.width;
      const [mx, my] = [(event.clientX - frame.left) * scale, (event.clientY - frame.top) * scale];
      let best = null, least = 40 * 40;
      for (const dot of dots) {
        const far = (dot.px - mx) ** 2 + (dot.py - my) ** 2;
        if (far < least) [best, least] = [dot, far];
      }
      if (best) show(best);
      else if (current) hide();
    };
    host.onpointerleave = hide;
    host.onblur = hide;
    host.onclick = () => current && current.point.href && (location.hash = current.point.href);
    host.onkeydown = (event) => {
      if (event.key === "Escape") return hide();
      if (event.key === "Enter" && current && current.point.href) return void (location.hash = current.point.href);
      const next = neighbor(dots, current, event.key);
      if (!next) return undefined;
      event.preventDefault();
      return show(next);
    };
  }

  function neighbor(dots, current, key) {
    if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(key) || !dots.length) return null;
    if (!current) return dots[0];
    if (key === "ArrowLeft" || key === "ArrowRight") {
      const own = dots.filter((d) => d.line === current.line);
      const at = own.indexOf(current) + (key === "ArrowRight" ? 1 : -1);
      return own[Math.min(own.length - 1, Math.max(0, at))];
    }
    const lines = [...new Set(dots.map((d) => d.line))];
    const at = (lines.indexOf(current.line) + (key === "ArrowDown" ? 1 : lines.length - 1)) % lines.length;
    return dots.filter((d) => d.line === lines[at]).reduce((a, b) => (Math.abs(b.px - current.px) < Math.abs(a.px - current.px) ? b : a));
  }

  function dim(root, label) {
    for (const group of root.querySelectorAll(".series")) {
      group.classList.toggle("dim", label !== null && group.dataset.name !== label);
      group.classList.toggle("lit", label !== null && group.dataset.name === label);
    }
  }

  const tip = {
    show(lines, left, top) {
      const box = document.getElementById("tip");
      const [head, ...rest] = lines;
      box.replaceChildren(html("strong", {}, [head]), ...rest.map((text) => html(text.startsWith("runs ") ? "small" : "div", {}, [text])));
      box.hidden = false;
      const size = box.getBoundingClientRect(), wide = document.documentElement.clientWidth;
      const x = left + 16 + size.width < wide ? left + 16 : Math.max(8, left - 16 - size.width);
      const y = top + 14 + size.height < window.innerHeight ? top + 14 : Math.max(8, top - 14 - size.height);
      box.style.transform = `translate(${Math.round(x + window.scrollX)}px, ${Math.round(y + window.scrollY)}px)`;
    },
    hide() {
      document.getElementById("tip").hidden = true;
    },
  };

  // -- a chart as a file --------------------------------------------------------------------------------
  // What a style sheet says about a shape or a text, with what holds where nothing is said.
  const SHAPE = { fill: "", stroke: "none", "stroke-width": "1px", "stroke-dasharray": "none", "stroke-linejoin": "miter", "stroke-linecap": "butt", opacity: "1" };
  const TEXT = { fill: "", "font-size": "", "font-family": "", "font-weight": "400" };

  // A mixed color as other programs read it.
  const plain = (value) => value.replace(/^color\(srgb ([\d.e-]+) ([\d.e-]+) ([\d.e-]+)\)$/, (_, ...rgb) => `rgb(${rgb.slice(0, 3).map((v) => Math.round(255 * v)).join(", ")})`);

  // The chart with its title and legend as one SVG, in light colors, with every style written into it.
  function picture(host, spec) {
    const drawn = host.querySelector("svg"), [, , width, height] = drawn.getAttribute("viewBox").split(" ").map(Number);
    const named = spec.lines.length > 1 ? spec.lines : [], head = spec.title ? 22 : 0, row = 18;
    const inner = drawn.cloneNode(true);
    inner.removeAttribute("aria-hidden");
    for (const [key, value] of Object.entries({ width, height, y: head })) inner.setAttribute(key, value);
    inner.querySelector(".here")?.remove();
    const legend = named.map((line, i) => {
      const made = sample(line.style);
      for (const [key, value] of Object.entries({ x: 50, y: head + height + 4 + i * row, width: 34, height: 14 })) made.setAttribute(key, value);
      return svg("g", {}, [made, svg("text", { class: "tick", x: 92, y: head + height + 15 + i * row }, [line.label])]);
    });
    const whole = svg("svg", { xmlns: SVG, viewBox: `0 0 ${width} ${head + height + named.length * row + 8}`, width, height: head + height + named.length * row + 8 }, [
      svg("rect", { class: "ground", width: "100%", height: "100%" }),
      ...(head ? [svg("text", { class: "tick head", x: 8, y: 16 }, [spec.title])] : []),
      inner,
      ...legend,
    ]);
    const stage = html("div", { class: "stage", "aria-hidden": "true" }, [whole]); // in the page, so that the style sheet applies
    document.body.append(stage);
    for (const part of whole.querySelectorAll("*")) {
      const computed = getComputedStyle(part);
      for (const [name, usual] of Object.entries(part.tagName === "text" ? TEXT : SHAPE)) {
        const value = plain(computed.getPropertyValue(name));
        if (!part.hasAttribute(name) && value !== usual && !["g", "svg", "defs"].includes(part.tagName)) part.setAttribute(name, value);
      }
    }
    for (const part of whole.querySelectorAll("[class]")) for (const name of ["class", "style"]) part.removeAttribute(name);
    stage.remove();
    return new XMLSerializer().serializeToString(whole);
  }

  function csv(rows) {
    const cell = (value) => (value === null || value === undefined ? "" : /[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
    return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
  }

  function save(name, kind, content) {
    const link = html("a", { href: URL.createObjectURL(new Blob([content], { type: kind })), download: name.replace(/[^\w.-]+/g, "_") });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  // A picture of twice the size on the page, for slides.
  function png(name, text) {
    const image = new Image();
    image.onload = () => {
      const canvas = html("canvas", { width: 2 * image.width, height: 2 * image.height });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((made) => save(name, "image/png", made));
    };
    image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
  }

  // A menu next to a chart's title; what it saves is asked for when it is used.
  function files(host, name, specOf, rowsOf) {
    const menu = html("select", { class: "quiet", "aria-label": "Save this chart" }, ["Save", "PNG", "SVG", "CSV"].map((text) => html("option", {}, [text])));
    menu.onchange = () => {
      const kind = menu.value;
      if (kind === "CSV") save(`${name()}.csv`, "text/csv", csv(rowsOf()));
      else if (kind === "SVG") save(`${name()}.svg`, "image/svg+xml", picture(host, specOf()));
      else png(`${name()}.png`, picture(host, specOf()));
      menu.selectedIndex = 0;
    };
    return menu;
  }

  function sample(style) {
    const [, , marker, dashes] = look(style), dash = DASHES[dashes % DASHES.length];
    const drawn = svg("svg", { viewBox: "0 0 34 14", "aria-hidden": "true" }, [
      svg("line", { class: "mean", x1: 2, x2: 32, y1: 7, y2: 7, ...(dash ? { "stroke-dasharray": dash } : {}) }),
      svg("path", { class: "dot", d: MARKERS[marker % MARKERS.length], transform: "translate(17 7)" }),
    ]);
    return paint(drawn, style);
  }

  return { draw, domain, dim, files, html, sample, short, tip };
})();
