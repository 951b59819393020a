package paper;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichFlatMapFunction;

/** All operators: what they need of the run. */
public abstract class Operator<I, O> extends RichFlatMapFunction<I, O> {
    protected final Settings settings;
    private final String name;
    protected transient Marks marks;

    protected Operator(Settings settings, String name) {
        this.settings = settings;
        this.name = name;
    }

    @Override
    public void open(OpenContext context) throws Exception {
        marks = new Marks(settings);
        marks.opened(name + "." + getRuntimeContext().getTaskInfo().getIndexOfThisSubtask());
    }
}
