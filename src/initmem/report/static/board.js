"use strict";
// Keep the sections up to date with the store: the server says which ones changed, and these are fetched.
(() => {
  const { html } = initmem;
  const busy = new Map(); // section -> the tag that is being fetched
  let latest = {};

  const link = document.getElementById("link");
  const say = (state, text) => {
    link.dataset.state = state;
    if (link.textContent !== text) link.textContent = text;
  };

  function follow() {
    const events = new EventSource("events");
    events.onopen = () => say("live", "live");
    events.onmessage = (event) => {
      latest = JSON.parse(event.data);
      say("live", "live");
      if (!document.hidden) refresh();
    };
    events.onerror = () => say("lost", `no answer since ${new Date().toLocaleTimeString()}`);
    document.addEventListener("visibilitychange", () => !document.hidden && refresh());
    window.addEventListener("pagehide", () => events.close());
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
    if (section.dataset.part === "live") refreshRun();
  }

  function pathTo(root, node) {
    const path = [];
    for (let here = node; here !== root; here = here.parentElement) path.unshift([...here.parentElement.children].indexOf(here));
    return path;
  }

  const at = (root, path) => path.reduce((node, i) => node?.children[i], root);

  // -- one run ------------------------------------------------------------------------------------------
  const PLOTS = [
    ["accuracy", [["train_accuracy", "train"], ["val_accuracy", "validation"]], false],
    ["loss", [["train_loss", "train"], ["val_loss", "validation"]], true], // of user code, which defines it
    ["cross-entropy", [["train_cross_entropy", "train"], ["val_cross_entropy", "validation"]], true],
    ["objective (cross-entropy + penalty)", [["train_objective", "train"], ["val_objective", "validation"]], true],
    ["kernel norm", [["norm", "norm"]], false],
    ["learning rate", [["learning_rate", "rate"]], false],
  ];
  const dialog = html("dialog", { class: "run", "aria-label": "One run" });
  document.body.append(dialog);
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());

  initmem.openRun = async (id) => {
    dialog.dataset.id = id;
    if (await showRun(id)) dialog.showModal();
  };
  const refreshRun = () => dialog.open && dialog.dataset.status === "training" && showRun(dialog.dataset.id);

  async function showRun(id) {
    const answer = await fetch(`run/${id}`);
    if (!answer.ok) return false;
    const run = await answer.json();
    dialog.dataset.status = run.status;
    const close = html("button", { type: "button", class: "quiet" }, ["Close"]);
    close.onclick = () => dialog.close();
    const head = html("header", {}, [html("h2", {}, [run.place || run.id]), close]);
    const charts = html("div", { class: "charts" });
    const summary = `${run.status}, run ${run.id}, ${(run.history.val_accuracy || []).length} epochs`;
    dialog.replaceChildren(head, html("p", { class: "lead" }, [summary]), charts, ...(run.error ? [html("pre", {}, [run.error])] : []));
    const drawings = PLOTS.map(([title, columns, log]) => plot(charts, run, title, columns, log));
    requestAnimationFrame(() => drawings.forEach((draw) => draw?.())); // when all have their place and width
    return true;
  }

  function plot(charts, run, title, columns, log) {
    const lines = columns
      .filter(([name]) => run.history[name]?.length)
      .map(([name, label], style) => ({ label, name: label, style, points: run.history[name].map((y, i) => point(label, y, i + 1)) }));
    if (!lines.length) return null;
    const place = html("div", { class: "plot", tabindex: "0" });
    const names = lines.length > 1 ? lines.map((line) => html("span", { class: "key" }, [initmem.sample(line.style), line.label])) : [];
    charts.append(html("figure", { class: "chart" }, [html("figcaption", {}, [title, ...names]), place]));
    const points = lines.flatMap((line) => line.points);
    const x = { title: "epoch", whole: true, limits: [0, Math.max(2, ...points.map((p) => p.x))] };
    const y = { title, log, limits: initmem.domain(points.map((p) => p.y), log) };
    return () => initmem.draw(place, { title, lines, x, y });
  }

  const point = (label, y, x) => ({ x, y, low: null, high: null, words: [`epoch ${x}`, y === null ? "not a number" : `${label}: ${Number(y.toPrecision(4))}`] });

  initmem.runRows = async (recipe) => {
    const answer = await fetch(`runs/${recipe}`);
    return answer.ok ? answer.json() : null;
  };

  follow();
})();
