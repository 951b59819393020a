import type { Named } from "./place";

/** An event by its name, which opens its lineage. */
export function EventLink({ event, open }: { event: Named; open: (named: Named) => void }) {
  return (
    <button type="button" className="link" onClick={() => open(event)}>
      {event.port} {event.event}
    </button>
  );
}
