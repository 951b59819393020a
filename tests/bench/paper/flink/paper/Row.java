package paper;

import java.util.List;

/** What the writing operator writes, and sends behind it. */
public class Row {
    public long batch;
    public long events;
    public long first = Long.MAX_VALUE;
    public long total;
    public long squares;

    public static Row of(long batch, List<Event> events) {
        Row made = new Row();
        made.batch = batch;
        made.events = events.size();
        for (Event one : events) {
            made.first = Math.min(made.first, one.number);
            made.total += one.total;
            made.squares += one.squares;
        }
        return made;
    }
}
