package paper;

import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.util.Collector;

/** The operators with a state that write nothing. */
public final class Stateful {
    static final int WINDOW = 2;

    private Stateful() {}

    static <T> ListState<T> state(FunctionInitializationContext context, String name, Class<T> of) throws Exception {
        return context.getOperatorStateStore().getListState(new ListStateDescriptor<>(name, of));
    }

    static <T> List<T> read(ListState<T> state) throws Exception {
        List<T> found = new ArrayList<>();
        state.get().forEach(found::add);
        return found;
    }

    /** OP3 of use cases 1 and 2: one event of two, as large as one of them. */
    public static class Slow extends Operator<Event, Event> implements CheckpointedFunction {
        private transient List<Event> held;
        private transient ListState<Event> state;

        public Slow(Settings settings) {
            super(settings, "op3");
        }

        @Override
        public void flatMap(Event event, Collector<Event> out) throws Exception {
            marks.mayFail("op3", event.number + 1, 0, 1);
            held.add(event);
            if (held.size() < WINDOW) {
                return;
            }
            Marks.sleep(settings.op3Seconds);
            Row sums = Row.of(0, held);
            out.collect(new Event(sums.first, sums.total, sums.squares, held.get(0).payload));
            held.clear();
        }

        @Override
        public void initializeState(FunctionInitializationContext context) throws Exception {
            state = state(context, "held", Event.class);
            held = read(state);
        }

        @Override
        public void snapshotState(FunctionSnapshotContext context) throws Exception {
            state.update(held);
        }
    }

    /** The last operator: notes when it has the last event that it is to get, and that it got more. */
    public static class Ending extends Operator<Row, Row> implements CheckpointedFunction {
        private transient long counted;
        private transient ListState<Long> state;

        public Ending(Settings settings) {
            super(settings, "end");
        }

        @Override
        public void flatMap(Row row, Collector<Row> out) throws Exception {
            counted++;
            if (counted >= settings.end) {
                marks.mark(counted == settings.end ? "ended" : "one_too_many");
            }
        }

        @Override
        public void initializeState(FunctionInitializationContext context) throws Exception {
            state = state(context, "counted", Long.class);
            for (long each : read(state)) {
                counted += each;
            }
        }

        @Override
        public void snapshotState(FunctionSnapshotContext context) throws Exception {
            state.update(List.of(counted));
        }
    }
}
