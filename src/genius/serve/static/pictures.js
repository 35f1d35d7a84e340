// Pictures that a person hands over: which can be used, and how they become quick to send.

const SIDE = 1024; // a question needs no more: a phone's photo becomes a quick upload
const SMALL = 300_000; // bytes that are sent as they are

// Why a file cannot be used, or "".
export function unusable(file) {
  if (file.type && !file.type.startsWith("image/")) return `“${file.name}” is not an image. Drop a PNG, JPEG, WebP, GIF, BMP or AVIF file.`;
  if (file.type === "image/svg+xml") return "SVG drawings are not accepted. Drop a PNG or JPEG of it instead.";
  return "";
}

// A smaller copy of a picture, or the file itself where the browser cannot read it: then the server says why.
export async function shrink(file, most = SMALL, side = SIDE) {
  if (file.size < most) return file;
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, side / Math.max(bitmap.width, bitmap.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    const context = canvas.getContext("2d");
    context.fillStyle = "#fff";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    bitmap.close();
    const smaller = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.9));
    return smaller && smaller.size < file.size ? smaller : file;
  } catch {
    return file;
  }
}
