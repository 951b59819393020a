const KINDS: Record<string, string> = {
  running: "good",
  draining: "good",
  finished: "done",
  claimed: "begin",
  submitted: "begin",
  restarted: "begin",
  dead: "bad",
  parked: "bad",
  quarantined: "warn",
  "finished with quarantine": "warn",
  "waiting for a person": "warn",
  halted: "warn",
};

export const kindOf = (state: string): string => KINDS[state] ?? "idle";

/** The state of a group or a run: a word, and a colour that says the same. */
export function State({ state, words = state }: { state: string; words?: string }) {
  return (
    <span className={`state ${kindOf(state)}`}>
      <span className="dot" aria-hidden="true" />
      {words}
    </span>
  );
}
