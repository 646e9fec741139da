// The dashboard's page. It shows what /stream sends once a second (coordinator/dashboard/page_data.h), and keeps the last
// minutes of it for the charts.
"use strict";

const KEPT = 300;          // looks, for the charts
const MANY = 64;           // nodes: beyond, ranks are small and nodes have no names; GPUs: beyond, only some are shown
const LATE = 20;           // percent, from which on a rank is named
const EVENTS = 200;
const STATES = ["running", "waiting for the start", "late", "left"];

const $ = (id) => document.getElementById(id);
const kept = new Map();  // by job: {looks: [{now, steps, waiting, bytes, sent, late: {rank: percent}}]}
const charts = {};
let events = [];
let selected = null;
let chosen = false;        // by the user; else it is a job with a straggler, if there is one
let last = null;
let mayControl = false;    // start and stop timelines

function make(tag, text, cls) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (cls) element.className = cls;
  return element;
}

function amount(n) {
  const units = ["", "k", "M", "G", "T", "P"];
  let unit = 0;
  for (; n >= 999.5 && unit + 1 < units.length; ++unit) n /= 1000;
  return (n === 0 || n >= 99.95 ? n.toFixed(0) : n >= 9.995 ? n.toFixed(1) : n.toFixed(2)) + units[unit];
}

function duration(seconds) {
  const s = Math.floor(seconds);
  if (s < 60) return s + " s";
  if (s < 3600) return Math.floor(s / 60) + " min";
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor(s % 3600 / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor(s % 86400 / 3600) + " h";
}

// All ranks of a job, the latest first.
function latest(job) {
  const ranks = [];
  for (const node of job.nodes) {
    for (const [rank, state, late, waiting, pid] of node.ranks) {
      if (late >= 0) ranks.push({rank, state, late, waiting, pid, node: node.node});
    }
  }
  return ranks.sort((a, b) => b.late - a.late);
}

// The ranks that the others wait for; none if most are late, for then a few just wait longer than all others.
function stragglers(job) {
  const ranks = latest(job);
  const late = ranks.filter((r) => r.late >= LATE);
  return late.length * 2 > ranks.length ? [] : late;
}

function remember(job, now) {
  if (!kept.has(job.job)) kept.set(job.job, {looks: []});
  const mine = kept.get(job.job);
  const stats = job.stats;
  const late = {};
  for (const r of latest(job).slice(0, 16)) late[r.rank] = r.late;
  mine.looks.push({now, late, steps: stats && stats.steps, waiting: stats && 100 * stats.waiting,
                   bytes: stats && stats.bytes, sent: stats && stats.sent});
  if (mine.looks.length > KEPT) mine.looks.shift();
}

// --- The list of jobs ---------------------------------------------------------------------------------------------

function showJobs(jobs) {
  const buttons = jobs.map((job) => {
    const late = stragglers(job);
    const button = make("button", undefined, job.state !== "running" ? "idle" : late.length ? "late" : "");
    button.append(make("b", job.job));
    const steps = job.stats ? amount(job.stats.steps) + " steps/s" : job.state;
    button.append(make("span", job.size + " ranks, " + steps + (job.tier ? ", " + job.tier : "")));
    if (late.length) button.append(make("div", "waits for rank " + late[0].rank, "why"));
    button.setAttribute("aria-current", job.job === selected);
    button.onclick = () => {
      selected = job.job;
      chosen = true;
      show(last);
    };
    return button;
  });
  $("jobs").replaceChildren(...buttons);
}

// --- One job ------------------------------------------------------------------------------------------------------

function showTrouble(job) {
  const late = stragglers(job);
  let text = job.state === "running" ? "All ranks are equally fast." : "The job is " + job.state + ".";
  if (job.state === "running" && !job.stats) text = "There are no figures yet.";
  if (late.length) {
    const r = late[0];
    text = "Rank " + r.rank + " (node " + r.node + ", pid " + r.pid + ") is late: the others wait for it " + r.late + " % of the time" +
      (late.length > 1 ? "; so are " + (late.length - 1) + " more" : "") + ".";
  }
  $("trouble").textContent = text;
  $("trouble").className = late.length ? "late" : "";
}

function showFacts(job) {
  const stats = job.stats;
  const facts = [
    ["steps per second", stats ? amount(stats.steps) : "–"],
    ["time in waits", stats ? Math.round(100 * stats.waiting) + " %" : "–"],
    ["operations per second", stats ? amount(stats.operations) : "–"],
    ["operations in a run", stats && stats.perRun ? amount(stats.perRun) : "–"],
    ["bytes per second", stats ? amount(stats.bytes) : "–"],
    ["between nodes", stats ? amount(stats.sent) : "–"],
    ["ranks", job.size + (job.elastic ? " (elastic)" : "")],
    ["nodes", job.nodes.length],
    ["epoch", job.epoch],
    [job.state + " for", duration(job.seconds)],
  ];
  if (job.tier === "negotiated" && job.left) facts.push(["not frozen, because", job.left]);
  $("facts").replaceChildren(...facts.map(([name, value]) => {
    const box = make("div");
    box.append(make("dt", name), make("dd", value));
    return box;
  }));
}

function showGrid(job) {
  const grid = $("grid");
  const many = job.nodes.length > MANY;
  grid.className = many ? "many" : "";
  const parts = [];
  for (const node of job.nodes) {
    const name = make("span", node.node + (node.connected ? "" : " (no connection)"), node.connected ? "node" : "node away");
    name.title = "host " + node.host + "\nsends " + amount(node.sent) + " bytes per second\nreceives " + amount(node.received);
    parts.push(name);
    const row = make("div", undefined, "ranks");
    for (const [rank, state, late, waiting, pid] of node.ranks) {
      const cell = make("i", rank === null ? "new" : rank);
      if (state === 3) cell.className = "gone";
      if (late >= 0) cell.style.background = "color-mix(in srgb, var(--bad) " + late + "%, var(--calm))";
      cell.title = "rank " + rank + ", node " + node.node + ", pid " + pid + ": " + STATES[state] +
        (late < 0 ? "" : "\nthe others wait for it " + late + " % of the time\nit waits " + waiting + " %");
      row.append(cell);
    }
    parts.push(row);
  }
  grid.replaceChildren(...parts);
}

// As nvidia-smi has it, whoever uses the GPU. Of many the least busy ones.
function showGpus(job) {
  let gpus = job.nodes.flatMap((node) => node.gpus.map((gpu) => [node.node, ...gpu]));
  const count = gpus.length;
  if (count > MANY) gpus = gpus.sort((a, b) => (a[4] ?? 101) - (b[4] ?? 101)).slice(0, MANY);
  const rows = gpus.map(([node, uuid, used, total, busy]) => {
    const row = make("tr");
    const load = make("td", busy === null ? "–" : busy + " % ");
    if (busy !== null) {
      const meter = make("meter");
      meter.max = 100;
      meter.value = busy;
      load.append(meter);
    }
    row.append(make("td", node), make("td", uuid.slice(0, 12)), load, make("td", amount(used) + "B of " + amount(total) + "B"));
    row.title = uuid;
    return row;
  });
  if (count > MANY) rows.push(make("tr", (count - MANY) + " more GPUs are as busy or busier"));
  $("gpus").hidden = !count;
  $("gpus").tBodies[0].replaceChildren(...rows);
}

// --- The timeline -------------------------------------------------------------------------------------------------

function showTimeline(job) {
  const t = job.timeline;
  const on = Boolean(t && t.state === "on");
  const button = $("record");
  button.hidden = !mayControl || job.state !== "running";
  button.textContent = on ? "Stop the timeline" : "Start a timeline";
  button.disabled = Boolean(t && t.state === "closing");
  button.onclick = () => order(job.job, on);
  let text = "";
  if (t) {
    text = t.error || (on ? "Rank " + t.rank + " (host " + t.host + ") writes the timeline " :
      t.state === "closing" ? "The timeline is being completed: " : "The last timeline is on host " + t.host + ", rank " + t.rank + ": ") + t.path;
  }
  $("recorded").textContent = text;
  $("recorded").className = t && t.error ? "late" : "";
}

// A header of our own: the coordinator knows by it that no page of another server has sent this.
async function order(job, stop) {
  $("record").disabled = true;
  const reply = await fetch("/timeline?job=" + encodeURIComponent(job) + (stop ? "&stop=1" : ""), {method: "POST", headers: {"X-Maypole": "1"}});
  if (!reply.ok) alert(await reply.text());
}

function showPending(job) {
  const items = job.pending.map((p) => make("li", p.what + " waits for node " + p.missing.join(", ") + (p.more ? " and " + p.more + " more" : "")));
  const more = job.pendingCount - items.length;
  if (more > 0) items.push(make("li", more + (items.length ? " more operations" : " operations") + " are present on some nodes"));
  if (!items.length) items.push(make("li", "nothing"));
  $("pending").replaceChildren(...items);
}

// --- Charts -------------------------------------------------------------------------------------------------------

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function chart(id, suffix) {
  if (charts[id]) return charts[id];
  const text = color("--soft"), line = color("--line");
  charts[id] = new Chart($(id), {
    type: "line",
    data: {labels: [], datasets: []},
    options: {
      animation: false, maintainAspectRatio: false, normalized: true,
      elements: {point: {radius: 0}, line: {borderWidth: 1.5, tension: .2}},
      interaction: {mode: "index", intersect: false},
      plugins: {legend: {display: false, labels: {color: text, boxWidth: 10, boxHeight: 2}}},
      scales: {
        x: {ticks: {color: text, maxTicksLimit: 4, maxRotation: 0, autoSkip: true}, grid: {display: false}},
        y: {beginAtZero: true, ticks: {color: text, maxTicksLimit: 5, callback: (v) => amount(v) + suffix}, grid: {color: line}},
      },
    },
  });
  return charts[id];
}

function draw(id, suffix, labels, lines) {
  const c = chart(id, suffix);
  c.data.labels = labels;
  const palette = ["--accent", "--bad", "--good", "--warn", "--soft"];
  c.data.datasets = lines.map(([label, data], i) => ({label, data, spanGaps: false, borderColor: color(palette[i % palette.length])}));
  c.options.plugins.legend.display = lines.length > 1;
  c.update("none");
}

function showCharts(job) {
  const looks = kept.get(job.job).looks;
  const labels = looks.map((l) => new Date(l.now).toLocaleTimeString());
  const of = (key) => looks.map((l) => l[key]);
  draw("steps", "", labels, [["steps per second", of("steps")]]);
  draw("waiting", " %", labels, [["time in waits", of("waiting")]]);
  draw("bytes", "", labels, [["results", of("bytes")], ["between nodes", of("sent")]]);
  const ranks = latest(job).slice(0, 5).map((r) => r.rank);
  draw("late", " %", labels, ranks.map((rank) => ["rank " + rank, looks.map((l) => l.late[rank] ?? (l.steps == null ? null : 0))]));
}

// --- Events -------------------------------------------------------------------------------------------------------

function showEvents() {
  const shown = events.filter((e) => !selected || !e.job || e.job === selected).slice(-40).reverse();
  const rows = shown.map((e) => {
    const row = make("tr", undefined, e.level);
    const text = (" " + e.text).replace(" event=" + e.kind, "").replace(" job=" + e.job, "").trim();
    row.append(make("td", new Date(1000 * e.time).toLocaleTimeString()), make("td", e.kind), make("td", text));
    return row;
  });
  $("events").tBodies[0].replaceChildren(...rows);
}

// --- The stream ---------------------------------------------------------------------------------------------------

function show(data) {
  last = data;
  if (data.error) {
    $("link").textContent = data.error;
    $("link").className = "link down";
    return;
  }
  const names = data.jobs.map((j) => j.job);
  if (!names.includes(selected)) chosen = false;
  if (!chosen) {
    const current = data.jobs.find((j) => j.job === selected);
    const worst = current && stragglers(current).length ? current : data.jobs.find((j) => stragglers(j).length);
    const some = worst ?? current ?? data.jobs.find((j) => j.state === "running") ?? data.jobs[0];
    selected = some ? some.job : null;
  }
  $("cluster").textContent = "version " + data.version + ", up " + duration(data.uptime) + ", " + names.length + (names.length === 1 ? " job" : " jobs");
  showJobs(data.jobs);
  const job = data.jobs.find((j) => j.job === selected);
  $("nothing").hidden = Boolean(job);
  $("details").hidden = !job;
  if (job) {
    $("name").textContent = job.job;
    $("tier").textContent = job.state !== "running" ? job.state : job.tier || "local";
    showTrouble(job);
    showFacts(job);
    showTimeline(job);
    showGrid(job);
    showGpus(job);
    showPending(job);
    showCharts(job);
  }
  showEvents();
}

function listen() {
  const source = new EventSource("/stream");
  source.onopen = () => {
    mayControl = false;  // this session may be another one; "control" follows if it may
    $("link").textContent = "live";
    $("link").className = "link";
  };
  source.onerror = () => {
    $("link").textContent = "no connection to the coordinator";
    $("link").className = "link down";
    // After an answer that is no stream (the session is over, for example) the browser does not try again.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000);
  };
  source.addEventListener("control", () => mayControl = true);
  source.onmessage = (message) => {
    const data = JSON.parse(message.data);
    if (!data.error) {
      const now = Date.now();
      for (const job of data.jobs) remember(job, now);
      for (const name of kept.keys()) {
        if (!data.jobs.some((j) => j.job === name)) kept.delete(name);
      }
      const known = events.length ? events[events.length - 1].number : 0;
      // After a reconnect the coordinator sends them again; another coordinator counts anew.
      if (data.events.length && data.events[data.events.length - 1].number < known) events = [];
      events = events.concat(data.events.filter((e) => !events.length || e.number > known)).slice(-EVENTS);
    }
    show(data);
  };
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const id of Object.keys(charts)) {
    charts[id].destroy();
    delete charts[id];
  }
  if (last) show(last);
});
listen();
