"use strict";
// Polls the operator's state and renders it. All values are inserted as text, never as markup.

const POLL_MS = 5000;
const TOKEN = "winpod-token";
const KIND = {
  "runs": "good", "waits": "wait", "unknown": "wait", "may-fail": "wait",
  "cannot-run": "bad", "retired": "bad", "contradicts": "bad",
};
const STEP_KIND = { Done: "good", Running: "wait", Undoing: "wait", Failed: "bad" };
const PHASE_KIND = { Done: "good", Running: "wait", Undoing: "wait", Blocked: "bad", Undone: "wait" };

const at = (id) => document.getElementById(id);
let shown = "";
let timer = 0;
let requests = 0;

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const formatWord = (word) => word.replaceAll("-", " ");
const badge = (word, kind) => make("span", { class: `badge ${kind || ""}` }, formatWord(word));
const quiet = (text) => make("span", { class: "quiet" }, text);
const code = (text) => make("code", {}, text);
const cell = (content, kind) => make("td", kind ? { class: kind } : {}, content);
const head = (...content) => make("th", { scope: "row" }, ...content);
const rows = (body, found, width, nothing) => at(body).replaceChildren(
  ...(found.length ? found : [make("tr", {}, make("td", { colspan: width }, quiet(nothing)))]));

function nodeRow(group) {
  const state = [`${group.ready} ready`];
  if (group.cordoned) state.push(`${group.cordoned} cordoned`);
  const more = group.count - group.names.length;
  const names = group.names.join(", ") + (more > 0 ? ` and ${more} more` : "");
  const name = group.os === "windows" ? group.release || "Windows" : group.os;
  const isolation = group.isolation.replaceAll("-", ", ");
  return make("tr", {},
    head(name), cell(group.build ? code(group.build) : "–"), cell(isolation || "–"),
    cell(group.runtime || "–"), cell(String(group.count), "number"), cell(state.join(", ")),
    cell(quiet(names)));
}

function classRow(found) {
  const about = make("td", { class: "why" }, found.about);
  if (found.retiring) about.append(" ", badge("retiring", "wait"), " ", found.retiring);
  if (!about.hasChildNodes()) about.append(quiet(found.selector.join(", ") || "–"));
  return make("tr", {},
    head(found.name), cell(code(found.handler)), cell(found.ours ? "winpod" : quiet("others")),
    cell(String(found.nodes), "number"), cell(String(found.users), "number"), about);
}

function podRow(pod) {
  const may = pod.nodes.join(", ") + (pod.more ? ` and ${pod.more} more` : "");
  const node = pod.node ? pod.node : quiet(may ? `may go to ${may}` : "none");
  return make("tr", {},
    head(`${pod.namespace}/${pod.name}`, make("br"), quiet(pod.owner || pod.phase)),
    cell(badge(pod.fate, KIND[pod.fate])), cell(node), cell(pod.class || "–"),
    cell(pod.sentence, "why"));
}

function refusedRow(one) {
  const when = make("time", { datetime: one.at }, new Date(one.at).toLocaleString());
  const times = one.count > 1 ? quiet(` ${one.count} times`) : "";
  return make("tr", {},
    cell(when), head(`${one.namespace}/${one.name || "(no name)"}`, times),
    cell(one.sentence, "why"));
}

function upgradeCard(upgrade) {
  const { total } = upgrade;
  const words = `${upgrade.done} of ${total} steps`;
  const card = make("article", { class: "upgrade" },
    make("h3", {}, `${upgrade.name}: from ${upgrade.from} to ${upgrade.to} `,
      badge(upgrade.phase || "planning", PHASE_KIND[upgrade.phase])),
    make("progress", { max: total || 1, value: upgrade.done, "aria-label": words }),
    make("p", { class: "quiet" }, `${words}, ${formatWord(upgrade.way)}`));
  if (upgrade.message) card.append(make("p", {}, upgrade.message));
  if (total) {
    const list = make("ol", { start: upgrade.earlier + 1 });
    for (const step of upgrade.steps) {
      list.append(make("li", {}, `${formatWord(step.do)} ${step.target} `,
        badge(step.state, STEP_KIND[step.state]), " ", quiet(step.message)));
    }
    const count = (number, words) => number ? quiet(`${number} ${words}`) : "";
    card.append(make("details", {}, make("summary", {}, "Steps"),
      count(upgrade.earlier, "earlier steps"), list,
      count(upgrade.later, "later steps")));
  }
  for (const one of upgrade.staying) {
    card.append(make("p", {}, `${one.workload} cannot move: ${one.reasons.join("; ")}`));
  }
  if (upgrade.more_staying) {
    card.append(make("p", {}, `${upgrade.more_staying} more workloads cannot move.`));
  }
  return card;
}

function numbers(state) {
  const windows = state.nodes.filter((group) => group.os === "windows");
  const counts = state.pods.counts;
  const total = Object.entries(counts).reduce(
    (sum, [fate, count]) => sum + (fate === "not-windows" ? 0 : count), 0);
  const found = [
    [windows.reduce((sum, group) => sum + group.count, 0), "Windows nodes"],
    [new Set(windows.map((group) => group.build)).size, "builds"],
    [state.classes.length, "classes"],
    [total, "Windows pods"],
    ...Object.entries(counts).filter(([fate]) => fate !== "not-windows" && fate !== "runs")
      .map(([fate, count]) => [count, formatWord(fate), KIND[fate]]),
  ];
  return found.map(([count, words, kind]) =>
    make("li", {}, make("strong", {}, String(count)), kind ? badge(words, kind) : words));
}

function show(state) {
  const role = state.operator.leads ? "leader" : "standby";
  const time = new Date(state.at).toLocaleTimeString();
  at("status").textContent = `${state.operator.identity} (${role}), updated at ${time}`;
  const { at: _, ...rest } = state;
  const text = JSON.stringify(rest);
  showProblem(state.problem);
  if (text === shown) return;
  shown = text;
  at("all").hidden = false;
  at("numbers").replaceChildren(...numbers(state));
  rows("nodes", state.nodes.map(nodeRow), 7, "No nodes.");
  rows("classes", state.classes.map(classRow), 6, "No RuntimeClasses.");
  rows("pod-rows", state.pods.shown.map(podRow), 5, "No matching pods.");
  rows("refused", state.refused.map(refusedRow), 3, "No pods were refused recently.");
  const { matching, shown: pods } = state.pods;
  at("matching").textContent =
    matching > pods.length ? `${pods.length} of ${matching} pods` : `${matching} pods`;
  const { shown: upgrades, more } = state.upgrades;
  at("upgrades").replaceChildren(...upgrades.map(upgradeCard),
    more ? make("p", { class: "quiet" }, `${more} older ones are not shown.`) : "");
  at("upgrades-part").hidden = upgrades.length === 0;
}

function showProblem(words) {
  at("problem").textContent = words;
  at("problem").hidden = !words;
}

async function poll() {
  clearTimeout(timer);
  const request = ++requests;
  const token = sessionStorage.getItem(TOKEN);
  const query = encodeURIComponent(at("filter").value);
  try {
    const answer = await fetch(`api/state?pods=${query}`, {
      headers: token ? { Authorization: `Bearer ${token}` } : {},
      cache: "no-store",
    });
    if (request !== requests) return;
    at("sign-in").hidden = answer.status !== 401;
    if (answer.ok) show(await answer.json());
    else showProblem(await answer.text());
  } catch (error) {
    if (request === requests) showProblem(`The operator does not respond: ${error.message}`);
  }
  if (request === requests) timer = setTimeout(poll, document.hidden ? 6 * POLL_MS : POLL_MS);
}

at("filter").addEventListener("input", poll);
at("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, at("token").value.trim());
  at("token").value = "";
  poll();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
poll();
