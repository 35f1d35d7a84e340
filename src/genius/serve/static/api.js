// Talks to the server that served this page. Knows keys and errors, nothing of the screen.

export class ApiError extends Error {
  constructor(status, message, retryAfter = null) {
    super(message);
    this.status = status; // 0: no answer at all
    this.retryAfter = retryAfter;
  }
}

// In this tab only: closing it forgets the key.
export const key = {
  get: () => sessionStorage.getItem("genius-key") ?? "",
  set: (value) => (value ? sessionStorage.setItem("genius-key", value) : sessionStorage.removeItem("genius-key")),
};

// The page of one collection among several is /?collection=NAME.
const collection = new URLSearchParams(location.search).get("collection");
const base = collection ? `v1/collections/${encodeURIComponent(collection)}` : "v1";

async function call(path, options = {}) {
  const headers = { ...(options.headers ?? {}) };
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  if (response.ok) return response;
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // a proxy's page, not ours: keep the status
  }
  throw new ApiError(response.status, message, Number(response.headers.get("Retry-After")) || null);
}

export async function search(request, picture, signal, path = `${base}/search`) {
  if (!picture) {
    const body = JSON.stringify(request);
    return (await call(path, { method: "POST", body, headers: { "Content-Type": "application/json" }, signal })).json();
  }
  const form = new FormData();
  for (const [name, value] of Object.entries(request)) if (value !== null && value !== undefined) form.append(name, String(value));
  form.append("image", picture, "query");
  return (await call(path, { method: "POST", body: form, signal })).json();
}

export async function explain(request, picture, signal) {
  return search(request, picture, signal, `${base}/explain`);
}

export const info = async () => (await call(`${base}/info`)).json();
export const item = async (id, signal) => (await call(`${base}/items/${encodeURIComponent(id)}`, { signal })).json();
export const add = async (form) => (await call(`${base}/items`, { method: "POST", body: form })).json();
export const remove = async (id, options = {}) => (await call(`${base}/items/${encodeURIComponent(id)}`, { method: "DELETE", ...options })).json();
export const codes = async (prefix, signal) => (await call(`${base}/codes/${prefix}`, { signal })).json();

// <img src> cannot carry a key, so with one the picture is fetched and shown from memory.
export function show(image, url) {
  const path = url.replace(/^\//, "");
  if (!key.get()) {
    image.src = path;
    return;
  }
  call(path)
    .then((response) => response.blob())
    .then((blob) => {
      image.addEventListener("load", () => URL.revokeObjectURL(image.src), { once: true });
      image.src = URL.createObjectURL(blob);
    })
    .catch(() => image.dispatchEvent(new Event("error")));
}
