import { Fragment, type RefObject } from "react";
import { EventLink } from "./EventLink";
import type { SearchedSoFar, WhyNot } from "./data";
import type { Named } from "./place";
import { count, part } from "./words";

type Open = (named: Named) => void;

interface Props {
  /** As far as it is known. */
  answer: WhyNot | null;
  busy: boolean;
  place: RefObject<HTMLElement | null>;
  open: Open;
}

/** Why a record is not there, in the sentences of the terminal; the events that they name open their lineage. */
export const Missing = ({ answer, busy, place, open }: Props) => (
  <section ref={place} tabIndex={-1} aria-label="Why it is not there" aria-busy={busy}>
    {answer !== null && <Answer answer={answer} open={open} />}
  </section>
);

/** `12,400 of 1,000,000 events, 3 with such records`. */
export function extent(at: SearchedSoFar): string {
  const slot = at.slot === null ? "" : `slot ${at.slot}, `;
  return `${slot}${part(at.searched, at.sent, "event")}${at.found > 0 ? `, ${count(at.found)} with such records` : ""}`;
}

/** What was not searched when a search ended early. */
export function notWhole(at: SearchedSoFar | null, failed: boolean): string {
  const how = failed ? "The search has failed" : "The search was stopped";
  if (at === null) return `${how} before an event was searched.`;
  return `${how} at ${at.port} (${extent(at)}). What it had not come to by then was not searched.`;
}

function Answer({ answer, open }: { answer: WhyNot; open: Open }) {
  const { searches, searches_in_all } = answer;
  return (
    <>
      {answer.is_there && <p className="small">It is there. Add values that the missing record would have.</p>}
      <ol className="plain small">
        {searches.map((one, index) => (
          <li key={index}>
            {one.said}
            {one.events.length > 0 && ":"} <Links events={one.events} open={open} />
            {one.events_in_all > one.events.length && ` (${part(one.events.length, one.events_in_all, "event")})`}
            <ul>
              {one.met.map((met, place) => (
                <li key={place}>
                  <EventLink event={met} open={open} />
                  {met.said} <Links events={met.made} open={open} />
                </li>
              ))}
              {one.met_in_all > one.met.length && <li>... and {count(one.met_in_all - one.met.length)} more</li>}
              {one.is_met_cut && <li>... and perhaps more: the time of this search is over</li>}
            </ul>
          </li>
        ))}
        {answer.notes.map((note, index) => (
          <li key={index}>{note}</li>
        ))}
      </ol>
      {answer.notes_in_all > answer.notes.length && <p className="small">{part(answer.notes.length, answer.notes_in_all, "note")} are shown.</p>}
      {searches_in_all > searches.length && <p className="small">{part(searches.length, searches_in_all, "port")} are shown.</p>}
      <p className="small">
        <code>logio lineage --why-not</code> has no limits.
      </p>
    </>
  );
}

const Links = ({ events, open }: { events: Named[]; open: Open }) =>
  events.map((event) => (
    <Fragment key={event.event}>
      <EventLink event={event} open={open} />{" "}
    </Fragment>
  ));
