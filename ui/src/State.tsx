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

/** `words` may say that a driver is silent: then it is not known whether it runs. */
export const kindOf = (state: string, words = state): string => (words.includes("no heartbeat") ? "warn" : (KINDS[state] ?? "idle"));

/** The state of a group or a run: a word, and a colour that says the same. */
export function State({ state, words = state, condition = words }: { state: string; words?: string; condition?: string }) {
  return (
    <span className={`state ${kindOf(state, condition)}`} title={condition === words ? undefined : condition}>
      <span className="dot" aria-hidden="true" />
      {words}
    </span>
  );
}
