"use strict";
// Keep the sections up to date with the store: ask the server which ones have changed, and fetch these.
(() => {
  const { html } = initmem;
  const busy = new Map(); // section -> the tag that is being fetched
  const PAUSE = 1000; // milliseconds between two questions
  let latest = {};

  const link = document.getElementById("link");
  const say = (state, text) => {
    link.dataset.state = state;
    if (link.textContent !== text) link.textContent = text;
  };

  async function follow() {
    if (!document.hidden) {
      try {
        const answer = await fetch("tags");
        if (!answer.ok) throw new Error(answer.statusText);
        latest = await answer.json();
        say("live", "live");
        refresh();
      } catch {
        if (link.dataset.state !== "lost") say("lost", `no answer since ${new Date().toLocaleTimeString()}`);
      }
    }
    setTimeout(follow, PAUSE);
  }

  function refresh() {
    for (const section of document.querySelectorAll("section.part")) {
      const tag = latest[section.dataset.part];
      if (tag && tag !== section.dataset.tag && !busy.has(section)) replace(section, tag);
    }
  }

  async function replace(section, tag) {
    busy.set(section, tag);
    try {
      const answer = await fetch(`part/${section.dataset.part}`);
      if (!answer.ok) return;
      const text = await answer.text();
      show(section, text);
      section.dataset.tag = (answer.headers.get("ETag") || tag).replaceAll('"', "");
    } catch {
      return; // the server is gone: the link says so
    } finally {
      busy.delete(section);
    }
    if (latest[section.dataset.part] !== section.dataset.tag) refresh();
  }

  // Replace the content of a section, and keep what the reader did to it: open details, focus, scrolling.
  function show(section, text) {
    const open = [...section.querySelectorAll("details")].map((item) => item.open && item.querySelector("summary").textContent);
    const focused = section.contains(document.activeElement) ? pathTo(section, document.activeElement) : null;
    const scrolled = [...section.querySelectorAll(".scroll")].map((item) => item.scrollLeft);
    const height = section.offsetHeight;
    section.style.minHeight = `${height}px`; // what is below should not jump while charts are drawn
    section.innerHTML = text; // made by the same templates as the page; the server escaped what is in it
    section.hidden = !text.trim();
    document.querySelector(`nav a[href="#${section.dataset.part}"]`).hidden = section.hidden;
    for (const item of section.querySelectorAll("details")) item.open = open.includes(item.querySelector("summary").textContent);
    initmem.setUp(section);
    section.querySelectorAll(".scroll").forEach((item, i) => (item.scrollLeft = scrolled[i] || 0));
    if (focused) at(section, focused)?.focus({ preventScroll: true });
    requestAnimationFrame(() => requestAnimationFrame(() => (section.style.minHeight = "")));
    restorePicks();
    if (section.dataset.part === "live") refreshRuns();
  }

  function pathTo(root, node) {
    const path = [];
    for (let here = node; here !== root; here = here.parentElement) path.unshift([...here.parentElement.children].indexOf(here));
    return path;
  }

  const at = (root, path) => path.reduce((node, i) => node?.children[i], root);

  // -- the curves of runs: one, or several together -----------------------------------------------------
  const MOST = 8; // runs that are told apart by color, marker and dashes
  const picked = new Set(); // ids, in the order in which they were ticked
  const dialog = html("dialog", { class: "run", "aria-label": "Curves of runs" });
  const bar = html("div", { class: "picks", role: "status", hidden: "" });
  document.body.append(dialog, bar);
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => location.hash.startsWith("#run:") && history.replaceState(null, "", location.pathname + location.search));

  function button(text, kind, act) {
    const made = html("button", { type: "button", class: kind }, [text]);
    made.onclick = act;
    return made;
  }

  function restorePicks() {
    for (const box of document.querySelectorAll("input[data-pick]")) {
      box.checked = picked.has(box.dataset.pick);
      box.disabled = !box.checked && picked.size >= MOST;
    }
    bar.hidden = !picked.size;
    const said = picked.size === 1 ? "1 run chosen" : `${picked.size} runs chosen${picked.size === MOST ? ", no more fit" : ""}`;
    const forget = () => {
      picked.clear();
      restorePicks();
    };
    bar.replaceChildren(said, button("Compare", "go", () => open([...picked])), button("Clear", "quiet", forget));
  }

  document.addEventListener("change", (event) => {
    const id = event.target.dataset?.pick;
    if (!id) return;
    event.target.checked ? picked.add(id) : picked.delete(id);
    restorePicks();
  });

  async function open(ids) {
    dialog.dataset.ids = ids.join(" ");
    if ((await showRuns(ids)) && !dialog.open) dialog.showModal();
  }

  function openAsked() {
    const found = /^#run:([0-9a-f]{16})$/.exec(location.hash);
    if (found) open([found[1]]);
  }
  const refreshRuns = () => dialog.open && dialog.dataset.training && showRuns(dialog.dataset.ids.split(" "));

  async function showRuns(ids) {
    const answers = await Promise.all(ids.map((id) => fetch(`run/${id}`).then((answer) => (answer.ok ? answer.json() : null))));
    const runs = answers.filter(Boolean);
    if (!runs.length) return false;
    dialog.dataset.training = runs.some((run) => run.status === "training") ? "yes" : "";
    const title = runs.length > 1 ? `${runs.length} runs together` : runs[0].about || runs[0].id;
    const head = html("header", {}, [html("h2", {}, [title]), button("Close", "quiet", () => dialog.close())]);
    const keys = runs.map((run, i) => html("li", { class: "key" }, [...(runs.length > 1 ? [initmem.sample(i)] : []), said(run)]));
    const charts = html("div", { class: "charts" });
    const errors = runs.filter((run) => run.error).map((run) => html("pre", {}, [run.error]));
    dialog.replaceChildren(head, html("ul", { class: "keys lead" }, keys), charts, ...errors);
    const drawings = columnsOf(runs).map((names) => plot(charts, runs, names));
    requestAnimationFrame(() => drawings.forEach((draw) => draw())); // when all have their place and width
    return true;
  }

  function said(run) {
    const epochs = Math.max(0, ...Object.values(run.history).map((values) => values.length));
    return `${run.about ? `${run.about}: ` : ""}${run.status}, ${epochs} epochs, run ${run.id}`;
  }

  // A chart per metric, what is derived from training last; of a single run, train and validation share one.
  const FIRST = [
    ...["val_accuracy", "train_accuracy", "val_loss", "train_loss"],
    ...["val_cross_entropy", "train_cross_entropy", "val_objective", "train_objective"],
  ];
  const DERIVED = /^(clock_|group|seconds|learning_rate|norm)/;
  const LAST = ["norm", "learning_rate"];

  function columnsOf(runs) {
    const there = new Set(runs.flatMap((run) => Object.keys(run.history).filter((name) => run.history[name].length)));
    const own = [...there].filter((name) => !FIRST.includes(name) && !DERIVED.test(name));
    const names = [...FIRST, ...own, ...LAST].filter((name) => there.has(name));
    if (runs.length > 1) return names.map((name) => [name]);
    const alike = new Map();
    for (const name of names) alike.set(stem(name), [...(alike.get(stem(name)) || []), name]);
    return [...alike.values()];
  }
  const stem = (name) => name.replace(/^(train|val|test)_/, "");

  function plot(charts, runs, names) {
    const single = runs.length === 1, words = names.map((name) => name.replaceAll("_", " "));
    const lines = runs.flatMap((run, i) =>
      names
        .filter((name) => run.history[name]?.length)
        .map((name, k) => {
          const label = single ? words[k] : run.about || run.id;
          return { label, name: label, style: single ? k : i, points: run.history[name].map((y, at) => point(words[k], y, at + 1)) };
        }),
    );
    const title = words.length > 1 ? stem(names[0]).replaceAll("_", " ") : words[0];
    const place = html("div", { class: "plot", tabindex: "0" });
    const keys = single && lines.length > 1 ? lines.map((line) => html("span", { class: "key" }, [initmem.sample(line.style), line.label])) : [];
    const points = lines.flatMap((line) => line.points), log = /loss|cross_entropy|objective/.test(names[0]) && points.every((p) => p.y === null || p.y > 0);
    const spec = {
      title,
      lines,
      x: { title: "epoch", whole: true, limits: [0, Math.max(2, ...points.map((p) => p.x))] },
      y: { title, log, limits: initmem.domain(points.map((p) => p.y), log) },
    };
    const rows = () => [["line", "epoch", title], ...lines.flatMap((line) => line.points.map((p) => [line.name, p.x, p.y]))];
    const caption = html("figcaption", {}, [html("span", {}, [title]), ...keys]);
    caption.append(initmem.files(place, () => title, () => spec, rows));
    charts.append(html("figure", { class: "chart" }, [caption, place]));
    return () => initmem.draw(place, spec);
  }

  const point = (label, y, x) => ({ x, y, low: null, high: null, words: [`epoch ${x}`, y === null ? "not a number" : `${label}: ${Number(y.toPrecision(4))}`] });

  initmem.runRows = async (recipe) => {
    const answer = await fetch(`runs/${recipe}`);
    return answer.ok ? answer.json() : null;
  };

  initmem.live = { restorePicks };
  window.addEventListener("hashchange", openAsked);
  openAsked();
  follow();
})();
