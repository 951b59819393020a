import { useEffect, useRef } from "react";
import type { Run } from "./data";

const LENGTH = 60;
/** A trail that ended longer ago says nothing of now. */
const KEPT_SECONDS = 300;
/** Where a tab keeps the trails of the run that it shows, for a reload. */
const KEY = "logio-trails";

/** Records per second of each group over the last looks, for small curves. */
export function useTrails(run: Run | null): Map<string, number[]> {
  const trails = useRef<Map<string, number[]> | null>(null);
  const at = useRef(0);
  useEffect(() => {
    if (run === null || run.at === at.current) return; // the same look again
    const known = trails.current ?? kept(run);
    at.current = run.at;
    for (const one of [...run.groups, ...run.wholes]) {
      known.set(one.name, [...(known.get(one.name) ?? []).slice(-LENGTH + 1), one.records_per_second]);
    }
    trails.current = known;
    keep(run, known);
  }, [run]);
  return trails.current ?? NONE;
}

const NONE = new Map<string, number[]>();

function kept(run: Run): Map<string, number[]> {
  try {
    const { uid, at, trails } = JSON.parse(window.sessionStorage.getItem(KEY) ?? "{}") as { uid?: string; at?: number; trails?: [string, number[]][] };
    if (uid === run.uid && at !== undefined && run.at - at < KEPT_SECONDS) return new Map(trails);
  } catch {
    // what is there was not written by this page
  }
  return new Map();
}

function keep(run: Run, trails: Map<string, number[]>) {
  try {
    window.sessionStorage.setItem(KEY, JSON.stringify({ uid: run.uid, at: run.at, trails: [...trails] }));
  } catch {
    // the browser has no room for it, or keeps nothing
  }
}
