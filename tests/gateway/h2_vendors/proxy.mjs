// An HTTP/2 server of another make, in front of a simulated vendor that speaks HTTP/1.1 without TLS.
//
//   node proxy.mjs PORT VENDOR_PORT CERTIFICATE KEY
//
// It prints one line per request: `VERSION METHOD PATH`. It has no limit and no timeout of its own:
// it is for tests.

import { readFileSync } from 'node:fs';
import http from 'node:http';
import http2 from 'node:http2';

const [port, vendor, certificate, key] = process.argv.slice(2);
const options = { cert: readFileSync(certificate), key: readFileSync(key), allowHTTP1: true };

/** Headers without those that are about one connection, or that HTTP/2 has its own form for. */
function without(headers) {
  const own = /^(:.*|connection|keep-alive|transfer-encoding|host)$/;
  return Object.fromEntries(Object.entries(headers).filter(([name]) => !own.test(name)));
}

const server = http2.createSecureServer(options, (request, response) => {
  const { httpVersion, method, url } = request;
  console.log(`${httpVersion} ${method} ${url}`);
  const fail = () => (response.stream ? response.stream.close(http2.constants.NGHTTP2_INTERNAL_ERROR) : response.destroy());
  const passed = http.request({ host: '127.0.0.1', port: vendor, method, path: url, headers: without(request.headers) });
  passed.on('error', fail);
  passed.on('response', (answer) => {
    answer.on('error', fail);
    response.writeHead(answer.statusCode, without(answer.headers));
    answer.pipe(response);
  });
  // A client that leaves is not answered further, and the vendor notices.
  response.on('close', () => passed.destroy());
  request.pipe(passed);
});
server.listen(Number(port), '127.0.0.1');
