// Shows the document of the server this page came from. No other host is asked for anything: the
// validator's badge is off, and tokens are kept nowhere.

const UUID_V7 = /[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}/g;

// A UUIDv7 (RFC 9562) of this moment.
function freshId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  let ms = Date.now();
  for (let i = 5; i >= 0; i--, ms = Math.floor(ms / 256)) bytes[i] = ms % 256;
  bytes[6] = (bytes[6] & 0x0f) | 0x70;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return [0, 8, 12, 16, 20].map((at, i, all) => hex.slice(at, all[i + 1])).join("-");
}

// The same id everywhere in the document becomes the same fresh one: examples that carry ids of an
// earlier day would be refused.
function withFreshIds(text) {
  const fresh = new Map();
  return text.replace(UUID_V7, (id) => {
    if (!fresh.has(id)) fresh.set(id, freshId());
    return fresh.get(id);
  });
}

// All errors of an operation as one response whose examples are chosen by code: one example is
// shown instead of thirty.
function withErrorsTogether(document) {
  for (const operations of Object.values(document.paths)) {
    for (const operation of Object.values(operations)) {
      const examples = {};
      let errors;
      for (const [status, response] of Object.entries(operation.responses || {})) {
        const problem = (response.content || {})["application/problem+json"];
        if (!problem) continue;
        for (const [code, example] of Object.entries(problem.examples || {})) {
          examples[`${status} ${code}`] = example;
        }
        errors ||= { description: "An error; choose one by its code", content: {
          "application/problem+json": { ...problem, examples } } };
        delete operation.responses[status];
      }
      if (errors) operation.responses["4xx, 5xx"] = errors;
    }
  }
  return document;
}

fetch("openapi.json")
  .then((answer) => answer.text())
  .then((text) => {
    const spec = withErrorsTogether(JSON.parse(withFreshIds(text)));
    // where a proxy has put this server: beside the page
    spec.servers = [{ url: new URL(".", location.href).pathname.replace(/\/$/, "") || "/" }];
    SwaggerUIBundle({
      spec,
      dom_id: "#api",
      deepLinking: true,
      defaultModelsExpandDepth: 0,
      displayRequestDuration: true,
      filter: true,
      persistAuthorization: false,
      queryConfigEnabled: false,
      validatorUrl: "none",
    });
  });
