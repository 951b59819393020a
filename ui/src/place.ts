// What is open, in the fragment of the address: a link that can be kept. It names a run, a group and an event, and no data.

import { useEffect, useState } from "react";

/** The event whose lineage is shown. */
export interface Named {
  port: string;
  event: number;
}

export interface Place {
  run: string | null;
  group: string | null;
  named?: Named | null;
}

export function placeNow(): Place {
  const named = new URLSearchParams(window.location.hash.slice(1));
  const port = named.get("port");
  const event = Number(named.get("event"));
  return { run: named.get("run"), group: named.get("group"), named: port !== null && event > 0 ? { port, event } : null };
}

export function usePlace(): [Place, (next: Place) => void] {
  const [place, setPlace] = useState(placeNow);
  useEffect(() => {
    const follow = () => setPlace(placeNow());
    window.addEventListener("hashchange", follow);
    window.addEventListener("popstate", follow);
    return () => {
      window.removeEventListener("hashchange", follow);
      window.removeEventListener("popstate", follow);
    };
  }, []);
  const go = (next: Place) => {
    const named = new URLSearchParams();
    if (next.run !== null) named.set("run", next.run);
    if (next.group !== null) named.set("group", next.group);
    if (next.named) {
      named.set("port", next.named.port);
      named.set("event", String(next.named.event));
    }
    const hash = named.size ? `#${named.toString()}` : "";
    const { pathname, search } = window.location;
    // The state of the page around this one (Airflow's router) stays.
    window.history.pushState(window.history.state, "", `${pathname}${search}${hash}`);
    setPlace(next);
  };
  return [place, go];
}

/** The group of a task: of its name, or with a task for each replica (`load_2` runs `load.2`), that replica. */
export function groupOfTask(taskId: string | null, groups: string[]): string | null {
  const task = taskId?.split(".").at(-1);
  if (task === undefined) return null;
  return [task, task.replace(/_(\d+)$/, ".$1")].find((name) => groups.includes(name)) ?? null;
}
