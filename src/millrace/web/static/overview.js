// The overview: numbers and charts that follow the live stream.
"use strict";
(() => {
  const rate = (value) => value < 10 ? value.toFixed(1) : number(value);
  const span = (s) => s < 1e-3 ? `${Math.round(1e6 * s)} µs` : s < 1 ? `${Number((1e3 * s).toPrecision(3))} ms` : `${Number(s.toPrecision(3))} s`;
  const percent = (part) => part > 0 && part < 0.1 ? `${(100 * part).toFixed(1)}%` : `${Math.round(100 * part)}%`;
  const errorRate = (last) => {
    const first = sampleBefore(300);
    const failed = last.failed - first.failed, ended = failed + last.completed - first.completed;
    return ended > 0 ? percent(failed / ended) : "–";
  };
  const told = {
    pushed: (o) => rate(o.rates.pushed), completed: (o) => rate(o.rates.completed), failed: (o) => rate(o.rates.failed),
    error_rate: (o) => errorRate(o.samples.at(-1)),
    backlog: (o) => number(o.jobs.scheduled + o.jobs.blocked + o.jobs.ready),
    commit_p50: (o) => o.commit.count ? span(o.commit.p50) : "–",
    commit_p99: (o) => o.commit.count ? span(o.commit.p99) : "–",
    processed: (o) => number(o.processed), failures: (o) => number(o.failures),
    leased: (o) => number(o.jobs.leased), ready: (o) => number(o.jobs.ready),
    retrying: (o) => number(o.retrying), scheduled: (o) => number(o.jobs.scheduled - o.retrying),
    blocked: (o) => number(o.jobs.blocked), dead: (o) => number(o.jobs.dead), done: (o) => number(o.jobs.done),
    connections: (o) => number(o.protocols.reduce((sum, each) => sum + (each.name === "control" ? 0 : each.connections), 0)),
    halted: (o) => o.halted, paused: (o) => number(o.paused_queues),
  };

  // Charts

  const drawLive = () => {
    // A rate over less than a few seconds is noise, so the newest sample waits for its successor.
    const steady = samples.filter((sample, i) => !i || i + 1 < samples.length || sample.time - samples[i - 1].time > 2500);
    const rates = steady.slice(1).map((sample, i) => ratesBetween(steady[i], sample));
    const line = (name, color) => ({ name, color, values: rates.map((each) => each[name]) });
    charts.line(document.getElementById("rates"), steady.slice(1).map((sample) => sample.time), [
      line("pushed", "s1"), line("completed", "s2"), line("failed", "s3"),
    ]);
    charts.line(document.getElementById("backlog"), samples.map((sample) => sample.time), [
      { name: "backlog", color: "s1", values: samples.map((sample) => sample.backlog), area: true },
      { name: "leased", color: "s6", values: samples.map((sample) => sample.leased) },
    ]);
  };
  const drawHistory = (days) => {
    charts.bars(document.getElementById("history"), days.map((day) => day.date), [
      { name: "processed", color: "s2", values: days.map((day) => day.processed) },
      { name: "failed", color: "s3", values: days.map((day) => day.failures) },
    ]);
  };

  addSamples(JSON.parse(document.getElementById("rates").dataset.samples));
  drawLive();
  drawHistory(JSON.parse(document.getElementById("history").dataset.days));

  // Live

  const oldest = document.getElementById("oldest");
  const link = (path, inner) => {
    const made = document.createElement("a");
    made.href = prefix + path;
    made.append(inner);
    return made;
  };
  const showOldest = ({ oldest: job }) => {
    const which = job ? String(job.number) : "";
    if (oldest.dataset.which === which || oldest.contains(document.activeElement)) return;
    oldest.dataset.which = which;
    const small = document.createElement("small");
    if (job) {
      const since = document.createElement("time");
      since.className = "ago";
      since.dateTime = job.ready_at;
      small.append("in ", link(toQueue(job.queue), shown(job.queue, 40)));
      oldest.replaceChildren(link(toJob(job.id, job.number), since), small);
      renderTimes(oldest);
    } else {
      small.textContent = "no ready jobs";
      oldest.replaceChildren("none", small);
    }
  };

  document.addEventListener("overview", (event) => {
    const overview = event.detail;
    for (const element of document.querySelectorAll("[data-number]")) {
      const text = told[element.dataset.number](overview);
      if (element.textContent !== text) element.textContent = text;
    }
    document.getElementById("halted").hidden = !overview.halted;
    document.getElementById("paused").hidden = !overview.paused_queues;
    showOldest(overview);
    drawLive();
  });
})();
