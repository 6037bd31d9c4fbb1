"use strict";
// Asks the operator for its state and shows it. Everything is text: nothing told becomes markup.

const EVERY = 5000;
const TOKEN = "winpod-token";
const KIND = {
  "runs": "good", "waits": "wait", "unknown": "wait", "may-fail": "wait",
  "cannot-run": "bad", "retired": "bad", "contradicts": "bad",
};
const STEP_KIND = { Done: "good", Running: "wait", Failed: "bad" };
const PHASE_KIND = { Done: "good", Running: "wait", Undoing: "wait", Blocked: "bad", Undone: "wait" };

const at = (id) => document.getElementById(id);
let shown = "";
let timer = 0;
let asked = 0;

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const say = (word) => word.replaceAll("-", " ");
const badge = (word, kind) => make("span", { class: `badge ${kind || ""}` }, say(word));
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
    make("p", { class: "quiet" }, `${words}, ${say(upgrade.way)}`));
  if (upgrade.message) card.append(make("p", {}, upgrade.message));
  if (total) {
    const list = make("ol", { start: upgrade.earlier + 1 });
    for (const step of upgrade.steps) {
      list.append(make("li", {}, `${say(step.do)} ${step.target} `,
        badge(step.state, STEP_KIND[step.state]), " ", quiet(step.message)));
    }
    const count = (number, words) => number ? quiet(`${number} ${words}`) : "";
    card.append(make("details", {}, make("summary", {}, "Steps"),
      count(upgrade.earlier, "came before these"), list,
      count(upgrade.later, "come after these")));
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
      .map(([fate, count]) => [count, say(fate), KIND[fate]]),
  ];
  return found.map(([count, words, kind]) =>
    make("li", {}, make("strong", {}, String(count)), kind ? badge(words, kind) : words));
}

function show(state) {
  const leads = state.operator.leads ? "which leads" : "which waits to lead";
  const time = new Date(state.at).toLocaleTimeString();
  at("told").textContent = `as ${state.operator.identity}, ${leads}, saw it at ${time}`;
  const { at: _, ...rest } = state;
  const text = JSON.stringify(rest);
  trouble(state.problem);
  if (text === shown) return;
  shown = text;
  at("all").hidden = false;
  at("numbers").replaceChildren(...numbers(state));
  rows("nodes", state.nodes.map(nodeRow), 7, "There is no node.");
  rows("classes", state.classes.map(classRow), 6, "There is no RuntimeClass.");
  rows("pod-rows", state.pods.shown.map(podRow), 5, "There is no such pod.");
  rows("refused", state.refused.map(refusedRow), 3, "No pod was refused lately.");
  const { matching, shown: pods } = state.pods;
  at("matching").textContent =
    matching > pods.length ? `${pods.length} of ${matching} are shown` : `${matching} pods`;
  const { shown: upgrades, more } = state.upgrades;
  at("upgrades").replaceChildren(...upgrades.map(upgradeCard),
    more ? make("p", { class: "quiet" }, `${more} older ones are not shown.`) : "");
  at("upgrades-part").hidden = upgrades.length === 0;
}

function trouble(words) {
  at("trouble").textContent = words;
  at("trouble").hidden = !words;
}

async function ask() {
  clearTimeout(timer);
  const turn = ++asked;
  const token = sessionStorage.getItem(TOKEN);
  const wanted = encodeURIComponent(at("filter").value);
  try {
    const answer = await fetch(`api/state?pods=${wanted}`, {
      headers: token ? { Authorization: `Bearer ${token}` } : {},
      cache: "no-store",
    });
    if (turn !== asked) return;
    at("sign-in").hidden = answer.status !== 401;
    if (answer.ok) show(await answer.json());
    else trouble(await answer.text());
  } catch (error) {
    if (turn === asked) trouble(`The operator does not answer: ${error.message}`);
  }
  if (turn === asked) timer = setTimeout(ask, document.hidden ? 6 * EVERY : EVERY);
}

at("filter").addEventListener("input", ask);
at("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, at("token").value.trim());
  at("token").value = "";
  ask();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
ask();
