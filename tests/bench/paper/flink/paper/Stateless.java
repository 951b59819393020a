package paper;

import java.util.Arrays;
import java.util.Random;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.util.Collector;

/** The operators that hold no events. */
public final class Stateless {
    private Stateless() {}

    /** OP1 behind the numbers: an event of each, at a fixed rate by the clock. Where it begins again, the rate does. */
    public static class Paced extends Operator<Long, Event> {
        private transient byte[] noise;
        private transient long began;
        private transient boolean hasBegun;

        public Paced(Settings settings) {
            super(settings, "op1");
        }

        @Override
        public void open(OpenContext context) throws Exception {
            super.open(context);
            noise = new byte[settings.eventBytes];
            new Random(settings.eventBytes).nextBytes(noise); // nothing compresses it
            marks.waitForGo();
        }

        @Override
        public void flatMap(Long number, Collector<Event> out) throws Exception {
            long due = Math.round(number * settings.every * 1e9);
            if (!hasBegun) {
                began = System.nanoTime() - due;
                hasBegun = true;
            }
            Marks.sleep((began + due - System.nanoTime()) / 1e9);
            if (number == 0) {
                marks.mark("began");
            }
            long value = number + 1;
            out.collect(new Event(number, value, value * value, Arrays.copyOf(noise, noise.length)));
        }
    }

    /** OP2 of use cases 1 and 2: one event of each. */
    public static class Quick extends Operator<Event, Event> {
        public Quick(Settings settings) {
            super(settings, "op2");
        }

        @Override
        public void flatMap(Event event, Collector<Event> out) throws Exception {
            Marks.sleep(settings.op2Seconds);
            marks.mayFail("op2", event.number + 1, 0, 1);
            event.quick = true;
            out.collect(event);
        }
    }

    /** OP3 of use case 3. Events go to its replicas in turn, so that each knows how many it has. */
    public static class Replicated extends Operator<Event, Event> {
        private final int replicas;

        public Replicated(Settings settings, int replicas) {
            super(settings, "op3");
            this.replicas = replicas;
        }

        @Override
        public void flatMap(Event event, Collector<Event> out) throws Exception {
            Marks.sleep(settings.op3Seconds);
            marks.mayFail("op3", event.number / replicas + 1, (int) (event.number % replicas), replicas);
            out.collect(event);
        }
    }

    /** Dispatcher and Merger of use case 3. */
    public static class Passed extends Operator<Event, Event> {
        public Passed(Settings settings, String name) {
            super(settings, name);
        }

        @Override
        public void flatMap(Event event, Collector<Event> out) {
            out.collect(event);
        }
    }
}
