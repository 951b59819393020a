import { useEffect, useRef } from "react";
import type { Run } from "./data";

const LENGTH = 60;

/** Records per second of each group over the last looks, for small curves. */
export function useTrails(run: Run | null): Map<string, number[]> {
  const trails = useRef(new Map<string, number[]>());
  useEffect(() => {
    if (run === null) return;
    for (const one of [...run.groups, ...run.wholes]) {
      const trail = trails.current.get(one.name) ?? [];
      trails.current.set(one.name, [...trail.slice(-LENGTH + 1), one.records_per_second]);
    }
  }, [run]);
  return trails.current;
}
