// The API as a page, from this server's own OpenAPI document.
import { $, h } from "./dom.js";

function curl(method, path, content) {
  const lines = [`curl${method === "GET" ? "" : ` -X ${method}`} ${location.origin}${path}`];
  const json = content?.["application/json"];
  const example = Object.values(json?.examples ?? {})[0]?.value;
  if (example) lines.push(`  -H 'Content-Type: application/json'`, `  -d '${JSON.stringify(example).replaceAll("'", "'\\''")}'`);
  return lines.join(" \\\n");
}

function route(path, method, operation) {
  const content = operation.requestBody?.content;
  const answers = Object.entries(operation.responses).map(([status, response]) => [h("dt", {}, status), h("dd", {}, response.description ?? "")]);
  const examples = Object.values(content?.["application/json"]?.examples ?? {}).map((example) => [
    h("p", { class: "hint" }, example.summary),
    h("pre", { tabindex: "0" }, JSON.stringify(example.value, null, 2)),
  ]);
  return h(
    "details",
    { class: "route" },
    h("summary", {}, h("span", { class: "verb" }, method.toUpperCase()), h("code", {}, path), h("span", { class: "hint" }, operation.summary ?? "")),
    h(
      "div",
      { class: "inside" },
      operation.description && h("p", {}, operation.description),
      h("pre", { tabindex: "0" }, curl(method.toUpperCase(), path, content)),
      examples.flat(),
      h("dl", { class: "facts" }, answers.flat()),
    ),
  );
}

try {
  const document_ = await (await fetch("openapi.json")).json();
  const routes = Object.entries(document_.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => route(path, method, operation)),
  );
  $("routes").replaceChildren(...routes);
} catch {
  $("routes").replaceChildren(h("p", {}, "The description cannot be loaded. Is the server still running?"));
}
