// Light, dark, or as the system says. The choice is remembered in this browser.
import { $, svg } from "./dom.js";

const THEMES = ["system", "light", "dark"];
const ICONS = {
  system: "M12 3a9 9 0 1 0 0 18V3Z M12 3a9 9 0 0 1 0 18",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8Z M12 2v2 M12 20v2 M2 12h2 M20 12h2 M5 5l1.4 1.4 M17.6 17.6 19 19 M19 5l-1.4 1.4 M6.4 17.6 5 19",
  dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5Z",
};

function remembered() {
  try {
    const theme = localStorage.getItem("genius-theme");
    return THEMES.includes(theme) ? theme : "system";
  } catch {
    return "system"; // storage may be forbidden
  }
}

function apply(theme) {
  if (theme === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = theme;
  const label = `Theme: ${theme === "system" ? "as the system" : theme}`;
  const button = $("theme");
  button.replaceChildren(svg(ICONS[theme]));
  button.setAttribute("aria-label", label);
  button.title = label;
}

export function setUpTheme() {
  apply(remembered());
  $("theme").addEventListener("click", () => {
    const theme = THEMES[(THEMES.indexOf(remembered()) + 1) % THEMES.length];
    try {
      localStorage.setItem("genius-theme", theme);
    } catch {
      // then only for this page view
    }
    apply(theme);
  });
}
