// Ports that no other test process takes, not even between the moment they are found and the moment a server listens there.
// crates/test-world/src/ports.rs describes the scheme and reserves by the same names.

import { createServer } from 'node:net';

const FIRST_PORT = 20_000;
const PORTS_PER_BLOCK = 100;
const BLOCKS = 100;
/** Older versions pad the name of an abstract socket with zeros, so it reserves nothing. */
const MIN_NODE_VERSION = 22;

/** Listens at `address`; returns the server, or null if the address is in use. */
function listen(address) {
  return new Promise((done, failed) => {
    const server = createServer();
    server.once('error', (error) => (error.code === 'EADDRINUSE' ? done(null) : failed(error)));
    server.listen(address, () => done(server));
  });
}

/** Reserves the block that begins at `first` until this process ends. Returns its socket, or null if another process has it. */
export async function reserve(first) {
  if (Number.parseInt(process.versions.node, 10) < MIN_NODE_VERSION) {
    throw new Error(`Node.js ${MIN_NODE_VERSION} or newer is needed to reserve ports, and this is ${process.version}`);
  }
  const socket = await listen({ path: `\0model-gateway-test-ports-${first}` });
  return socket?.unref() ?? null;
}

/** Reserves a block that no process has. Returns its first port. */
async function reserveBlock() {
  for (let block = 0; block < BLOCKS; block += 1) {
    const first = FIRST_PORT + block * PORTS_PER_BLOCK;
    if (await reserve(first)) return first;
  }
  throw new Error(`other test processes have reserved all ${BLOCKS} blocks of ports`);
}

/** Returns a port for each name, from a block that this process has reserved. */
export async function freePorts(names) {
  const first = await reserveBlock();
  const ports = {};
  let port = first;
  for (const name of names) {
    // A process that knows nothing of the blocks may listen there.
    let server = null;
    while (!server) {
      if (port === first + PORTS_PER_BLOCK) throw new Error(`programs listen at almost all ports from ${first} to ${port}`);
      server = await listen({ port, host: '127.0.0.1' });
      if (server) ports[name] = port;
      port += 1;
    }
    await new Promise((closed) => server.close(closed));
  }
  return ports;
}
