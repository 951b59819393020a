import { Fragment } from "react";
import { EventLink } from "./EventLink";
import type { WhyNot } from "./data";
import type { Named } from "./place";
import { count, part } from "./words";

type Open = (named: Named) => void;

/** Why a record is not there, in the sentences of the terminal; the events that they name open their lineage. */
export function Missing({ answer, open }: { answer: WhyNot; open: Open }) {
  const { searches, searches_in_all } = answer;
  return (
    <section aria-label="Why it is not there">
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
    </section>
  );
}

const Links = ({ events, open }: { events: Named[]; open: Open }) =>
  events.map((event) => (
    <Fragment key={event.event}>
      <EventLink event={event} open={open} />{" "}
    </Fragment>
  ));
