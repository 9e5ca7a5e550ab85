// A client with the default options of @grpc/grpc-js: client.js SOCKET CALLS RUNS FOLLOWERS QUIET
//
// It prints a line for each part of the test. It asks the script that started it (scripts/clients) to restart the
// daemon and to count connections. PROTO names the folder of the service's definition.
'use strict';
const assert = require('node:assert');
const readline = require('node:readline');
const { setTimeout: sleep } = require('node:timers/promises');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const { Status } = require('nice-grpc-error-details/lib/proto/google/rpc/status');
const details = require('nice-grpc-error-details/lib/proto/google/rpc/error_details');

const [socket, ...counts] = process.argv.slice(2);
const [CALLS, RUNS, FOLLOWERS, QUIET] = counts.map(Number);
const definition = loader.loadSync('steprunner/v1/step_runner.proto', {
  includeDirs: [process.env.PROTO],
  keepCase: true,
  longs: Number,
  defaults: true,
});
const { steprunner } = grpc.loadPackageDefinition(definition);
const answers = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

async function ask(what) {
  console.log(`ask ${what}`);
  return (await answers.next()).value;
}

const connect = (options = {}) =>
  new steprunner.v1.StepRunner(`unix:${socket}`, grpc.credentials.createInsecure(), options);

// Makes a unary call and returns a promise of the answer.
const call = (client, method, request, options = {}) =>
  new Promise((resolve, reject) =>
    client[method](request, options, (error, answer) => (error ? reject(error) : resolve(answer))),
  );

const script = (text) => `[{name: work, script: "${text}"}]`;
const run = (client, id, text, variables = []) => call(client, 'Run', { id, steps: script(text), job: { variables } });
const finish = (client, id) => call(client, 'Finish', { id });
const numbers = (last) => Array.from({ length: last }, (_, n) => String(n + 1)).join(' ');

// Returns the lines that the steps wrote, without time, stream and flag (docs/integrate/protocol.md).
const bodies = (log) =>
  log
    .toString()
    .split('\n')
    .filter((line) => line.slice(28, 31) === '01O')
    .map((line) => line.slice(32))
    .join(' ');

// Returns the log from an offset to its end. Calls `seen` with each piece before it takes the next one.
async function follow(client, id, { offset = 0, seen = () => {}, ...options } = {}) {
  const pieces = [];
  for await (const { data } of client.FollowLogs({ id, offset }, options)) {
    pieces.push(data);
    await seen(data);
  }
  return Buffer.concat(pieces);
}

async function status(client, id) {
  const { jobs } = await call(client, 'Status', { id });
  assert.equal(jobs.length, 1);
  return jobs[0];
}

// Calls `work` with all numbers below `count`, at most `at` at a time.
async function parallel(count, at, work) {
  let next = 0;
  const worker = async () => {
    while (next < count) await work(next++);
  };
  await Promise.all(Array.from({ length: at }, worker));
}

async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error('the call succeeded');
}

// Returns the detail of this type that came with a refusal.
function detail(error, type) {
  const [bytes] = error.metadata.get('grpc-status-details-bin');
  const found = Status.decode(bytes).details.find(({ typeUrl }) => typeUrl.endsWith(`/google.rpc.${type}`));
  assert(found, `no ${type}: ${error}`);
  return details[type].decode(found.value);
}

function refused(error, code, reason, metadata) {
  assert.equal(error.code, code, error);
  const info = detail(error, 'ErrorInfo');
  assert.deepEqual([info.reason, info.domain, { ...info.metadata }], [reason, 'step-runner', metadata]);
}

async function calls(client) {
  await parallel(CALLS, 16, () => call(client, 'Status', {}, { deadline: Date.now() + 60_000 }));
  const connections = await ask('connections');
  assert.equal(connections, '1');
  return `${CALLS} calls, ${connections} connection`;
}

// Runs one of five kinds of short jobs, from Run to Finish.
async function oneRun(client, n) {
  const [id, kind] = [`run-${n}`, n % 5];
  const text = ['echo hello', 'exit 3', 'seq 200', 'echo $TOKEN', 'echo started; sleep 600'][kind];
  await run(client, id, text, [{ key: 'TOKEN', value: 'a-secret-of-this-job', masked: true }]);
  if (kind === 4) await call(client, 'Cancel', { id });
  const log = await follow(client, id);
  const ended = await status(client, id);
  assert(ended.finished && ended.log_bytes === log.length, id);
  assert.equal(ended.exit_code, [0, 3, 0, 0, -2][kind], id);
  if (kind !== 4) assert.equal(bodies(log), ['hello', '', numbers(200), '[MASKED]'][kind], id);
  await finish(client, id);
}

async function runs(client) {
  await parallel(RUNS, 20, (n) => oneRun(client, n));
  assert.deepEqual((await call(client, 'Status', {})).jobs, []);
  return `${RUNS} runs`;
}

async function followers(client) {
  await run(client, 'many', 'seq 40000');
  const logs = await Promise.all(Array.from({ length: FOLLOWERS }, () => follow(client, 'many')));
  assert(logs.every((log) => log.equals(logs[0])), 'followers saw different bytes');
  assert.equal(bodies(logs[0]), numbers(40000));
  assert.equal((await status(client, 'many')).log_bytes, logs[0].length);
  await finish(client, 'many');
  return `${FOLLOWERS} followers of ${logs[0].length} bytes`;
}

async function deadlines(client) {
  await run(client, 'late', 'echo begun; sleep 2; echo done');
  const other = follow(client, 'late');
  const error = await failure(follow(client, 'late', { deadline: Date.now() + 500 }));
  assert.equal(error.code, grpc.status.DEADLINE_EXCEEDED);
  assert(!(await status(client, 'late')).finished);
  assert.equal(bodies(await other), 'begun done');
  await finish(client, 'late');
  return 'deadlines';
}

async function cancelling(client) {
  await run(client, 'held', 'echo begun; sleep 600');
  const held = Array.from({ length: FOLLOWERS }, () => client.FollowLogs({ id: 'held' }));
  await Promise.all(held.map((stream) => new Promise((resolve) => stream.once('data', resolve))));
  const error = await failure(follow(client, 'held'));
  refused(error, grpc.status.RESOURCE_EXHAUSTED, 'too_many_followers', { id: 'held' });
  assert.equal(Number(detail(error, 'RetryInfo').retryDelay.seconds), 1);
  const ended = held.map((stream) => new Promise((resolve) => stream.once('error', resolve)));
  for (const stream of held) stream.cancel();
  for (const end of ended) assert.equal((await end).code, grpc.status.CANCELLED);
  const again = untilThereIsRoom(client, 'held');
  await call(client, 'Cancel', { id: 'held' });
  assert((await again).length > 0);
  assert.equal((await status(client, 'held')).exit_code, -2);
  await finish(client, 'held');
  return 'cancel';
}

// Follows the log. While that is refused for now, retries after the time that the daemon names.
async function untilThereIsRoom(client, id) {
  for (;;) {
    try {
      return await follow(client, id);
    } catch (error) {
      if (error.code !== grpc.status.RESOURCE_EXHAUSTED) throw error;
      await sleep(Number(detail(error, 'RetryInfo').retryDelay.seconds) * 1000);
    }
  }
}

async function keepalive() {
  const client = connect({ 'grpc.keepalive_time_ms': 1000, 'grpc.keepalive_timeout_ms': 5000 });
  await run(client, 'quiet', `sleep ${QUIET}; echo awake`);
  assert.equal(bodies(await follow(client, 'quiet')), 'awake');
  await finish(client, 'quiet');
  client.close();
  return `keepalive for ${QUIET} s`;
}

async function errors(client) {
  const { NOT_FOUND, INVALID_ARGUMENT } = grpc.status;
  refused(await failure(status(client, 'nobody')), NOT_FOUND, 'unknown_job', { id: 'nobody' });
  refused(await failure(call(client, 'Run', { id: 'a/b' })), INVALID_ARGUMENT, 'invalid_id', { field: 'id' });
  const step = (_, n) => `- {name: s${n}, script: 1, 鍵${n}: ${'ä'.repeat(200)}}\n`;
  const steps = Array.from({ length: 30 }, step).join('');
  const error = await failure(call(client, 'Run', { id: 'bad', steps }));
  refused(error, INVALID_ARGUMENT, 'malformed_steps', { id: 'bad', field: 'steps' });
  const { fieldViolations } = detail(error, 'BadRequest');
  assert(fieldViolations.length > 2);
  assert.equal(fieldViolations[0].field, 'steps:1:25');
  return 'errors with details';
}

// Follows a job while its daemon is killed and restarted, and resumes by offset.
async function restart(client) {
  await run(client, 'long', 'for i in $(seq 30); do echo $i; sleep 0.1; done; exit 7');
  let [log, asked, broken] = [Buffer.alloc(0), false, 0];
  const seen = async (data) => {
    log = Buffer.concat([log, data]);
    if (!asked && bodies(log).split(' ').length >= 5) {
      asked = true;
      assert.equal(await ask('restart'), 'restarted');
    }
  };
  for (let whole = false; !whole; ) {
    try {
      await new Promise((ready, late) =>
        client.waitForReady(Date.now() + 60_000, (error) => (error ? late(error) : ready())),
      );
      await follow(client, 'long', { offset: log.length, seen });
      whole = true;
    } catch (error) {
      assert.equal(error.code, grpc.status.UNAVAILABLE, error);
      broken++;
    }
  }
  assert(asked && broken > 0, 'the connection never broke');
  assert.equal(bodies(log), numbers(30));
  assert(log.equals(await follow(client, 'long')));
  assert.equal((await status(client, 'long')).exit_code, 7);
  await finish(client, 'long');
  return 'restart';
}

async function main() {
  console.log(`version grpc-js ${require('@grpc/grpc-js/package.json').version}`);
  const client = connect();
  const part = async (work) => {
    const begun = Date.now();
    console.log(`part ${await work(client)} ${((Date.now() - begun) / 1000).toFixed(1)} s`);
  };
  await part(calls);
  await part(runs);
  const kept = keepalive();
  for (const work of [followers, deadlines, cancelling, errors]) await part(work);
  console.log(`part ${await kept}`);
  await part(restart);
  assert.deepEqual((await call(client, 'Status', {})).jobs, []);
  console.log('done');
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
