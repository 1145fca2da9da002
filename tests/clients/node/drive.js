// Calls the client of npm's faktory-worker as stdin says, one JSON line per call and per answer:
//   ["push", {...}]  ->  {"ok": ...}  or  {"error": "..."}
// usage: node drive.js WID   (FAKTORY_URL names the server, FAKTORY_CA the authority's certificate)
"use strict";

const readline = require("readline");
const faktory = require("faktory-worker");
const { tlsOptions } = require("./tls");

const client = new faktory.Client({ wid: process.argv[2], tlsOptions });

const calls = {
  // The handshake alone, so that a refusal is seen as such.
  connect: async () => {
    await client.connect();
  },
  push: async ({ jid, queue, jobtype, args, at }) => {
    const job = client.job(jobtype, ...args);
    job.jid = jid;
    job.queue = queue;
    if (at) job.at = new Date(at);
    return job.push();
  },
  pushBulk: async (jobs) => client.pushBulk(jobs),
  fetch: async (...queues) => client.fetch(...queues),
  ack: async (jid) => client.ack(jid),
  fail: async (jid, message) => {
    const error = new Error(message);
    error.code = "ESTUMBLE";
    return client.fail(jid, error);
  },
  beat: async () => client.beat(),
  info: async () => client.info(),
  mutate: async (target, cmd, jid) => client[target].withJids(jid)[cmd](),
  close: async () => {
    await client.close();
  },
};

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [name, ...args] = JSON.parse(line);
    try {
      const ok = await calls[name](...args);
      console.log(JSON.stringify({ ok: ok === undefined ? null : ok }));
    } catch (error) {
      console.log(JSON.stringify({ error: String(error) }));
    }
  }
}

main();
