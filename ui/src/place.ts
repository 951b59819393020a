// What is open, in the fragment of the address: a link that can be kept. It names a run, a group, an event, what was unfolded
// from it and the records that were followed by their places, and no data.

import { useEffect, useState } from "react";

/** The event whose lineage is shown. */
export interface Named {
  port: string;
  event: number;
}

/** One record of an event, by its place in it, from 0. */
export interface RecordPlace extends Named {
  place: number;
  /** The record before it on the way was perhaps not made from it. */
  perhaps?: boolean;
}

/** What a person has unfolded of a lineage graph, in an order in which it can be unfolded again, and followed of records. */
export interface Trail {
  unfolded?: string[];
  records?: RecordPlace[];
}

export interface Place extends Trail {
  run: string | null;
  group: string | null;
  named?: Named | null;
}

/** Steps, and records, that an address keeps. */
export const MOST_KEPT = 30;

export function placeNow(): Place {
  const named = new URLSearchParams(window.location.hash.slice(1));
  const port = named.get("port");
  const event = Number(named.get("event"));
  return {
    run: named.get("run"),
    group: named.get("group"),
    named: port !== null && event > 0 ? { port, event } : null,
    unfolded: named.getAll("unfolded").slice(0, MOST_KEPT),
    records: named.getAll("record").slice(0, MOST_KEPT).flatMap(recordOf),
  };
}

function recordOf(text: string): RecordPlace[] {
  const [, port, event, place, perhaps] = /^(.+) (\d+) (\d+)( ~)?$/.exec(text) ?? [];
  return port === undefined ? [] : [{ port, event: Number(event), place: Number(place), perhaps: perhaps !== undefined }];
}

const recordText = (one: RecordPlace): string => `${one.port} ${one.event} ${one.place}${one.perhaps ? " ~" : ""}`;

/** As much of it as an address keeps, as text. */
export const spelled = ({ unfolded = [], records = [] }: Trail): string =>
  JSON.stringify([unfolded.slice(0, MOST_KEPT), records.slice(0, MOST_KEPT).map(recordText)]);

/** The place, and what goes to another one; `replaces`: without a step back to the last one. */
export function usePlace(): [Place, (next: Place, replaces?: boolean) => void] {
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
  const go = (next: Place, replaces = false) => {
    const named = new URLSearchParams();
    if (next.run !== null) named.set("run", next.run);
    if (next.group !== null) named.set("group", next.group);
    if (next.named) {
      named.set("port", next.named.port);
      named.set("event", String(next.named.event));
      for (const one of next.unfolded?.slice(0, MOST_KEPT) ?? []) named.append("unfolded", one);
      for (const one of next.records?.slice(0, MOST_KEPT) ?? [])
        named.append("record", recordText(one));
    }
    const hash = named.size ? `#${named.toString()}` : "";
    const { pathname, search } = window.location;
    // The state of the page around this one (Airflow's router) stays.
    window.history[replaces ? "replaceState" : "pushState"](window.history.state, "", `${pathname}${search}${hash}`);
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
