package paper;

import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.Partitioner;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;

/** The graphs of the paper's use cases, each operator in slots of its own, so that it is alone in its process. */
public final class PaperJob {
    private static final int REPLICAS = 2;

    private PaperJob() {}

    public static void main(String[] arguments) throws Exception {
        Settings settings = new Settings(arguments[0]);
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment();
        environment.setParallelism(1);
        DataStream<Event> op1 = environment
                .fromSource(
                        new NumberSequenceSource(0, settings.events - 1), WatermarkStrategy.noWatermarks(), "numbers")
                .slotSharingGroup("op1")
                .flatMap(new Stateless.Paced(settings))
                .returns(Event.class)
                .slotSharingGroup("op1");
        boolean replicas = settings.shape.equals("replicas");
        written(replicas ? replicated(op1, settings) : middle(op1, settings), settings, replicas ? "op5" : "op4")
                .flatMap(new Stateful.Ending(settings))
                .returns(Row.class)
                .slotSharingGroup("end")
                .sinkTo(new DiscardingSink<>())
                .slotSharingGroup("end");
        environment.execute("paper");
    }

    /** Use cases 1 and 2. */
    private static DataStream<Event> middle(DataStream<Event> op1, Settings settings) {
        DataStream<Event> op2 = op1.flatMap(new Stateless.Quick(settings)).slotSharingGroup("op2");
        boolean linear = settings.shape.equals("linear");
        DataStream<Event> op3 = (linear ? op2 : op1).flatMap(new Stateful.Slow(settings)).slotSharingGroup("op3");
        return linear ? op3 : op2.union(op3);
    }

    /** Use case 3. Flink's own round robin begins with any replica; this one knows which event goes where. */
    private static DataStream<Event> replicated(DataStream<Event> op1, Settings settings) {
        Partitioner<Long> inTurn = (number, partitions) -> (int) (number % partitions);
        return op1.flatMap(new Stateless.Passed(settings, "op2"))
                .slotSharingGroup("op2")
                .partitionCustom(inTurn, event -> event.number)
                .flatMap(new Stateless.Replicated(settings, REPLICAS))
                .setParallelism(REPLICAS)
                .slotSharingGroup("op3")
                .flatMap(new Stateless.Passed(settings, "op4"))
                .slotSharingGroup("op4");
    }

    private static DataStream<Row> written(DataStream<Event> events, Settings settings, String name) {
        boolean synchronizes = settings.shape.equals("synchronized");
        return events.flatMap(new Writing(settings, name, synchronizes)).slotSharingGroup(name);
    }
}
