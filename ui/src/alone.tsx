// Without Airflow (`logio ui`): the token comes in the fragment of the printed address, and leaves the address at once.

import { createRoot } from "react-dom/client";
import { App } from "./App";
import { Server } from "./data";
import "./style";

const KEY = "logio-token";

function token(): string {
  const named = new URLSearchParams(window.location.hash.slice(1));
  const given = named.get("token");
  if (given !== null) {
    window.sessionStorage.setItem(KEY, given);
    named.delete("token");
    window.history.replaceState(null, "", named.size ? `#${named.toString()}` : window.location.pathname);
  }
  return given ?? window.sessionStorage.getItem(KEY) ?? "";
}

// A new address of `logio ui`, pasted into this tab, changes only the fragment: the browser would not load it.
window.addEventListener("hashchange", () => {
  if (new URLSearchParams(window.location.hash.slice(1)).has("token")) window.location.reload();
});

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark", dark.matches);
dark.addEventListener("change", follow);
follow();

const server = new Server(new URL("./", document.baseURI).href, token());
createRoot(document.getElementById("root")!).render(
  <App server={server} dagId={null} dagRunId={null} taskId={null} alone />,
);
