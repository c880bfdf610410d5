import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.filter.expression.BooleanExpression;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;

/**
 * What RocketMQ's own filter says. Each line of the input is an expression and the names and values of properties,
 * separated by tabs; each line of the output is true, false, null, error (it failed) or refused (it is no expression).
 */
public final class Filtering {
    private Filtering() {
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(line.split("\t", -1)));
        }
        out.flush();
    }

    private static String answer(String[] parts) {
        Map<String, Object> properties = new HashMap<>();
        for (int at = 1; at + 1 < parts.length; at += 2) {
            properties.put(parts[at], parts[at + 1]);
        }
        BooleanExpression expression;
        try {
            expression = SelectorParser.parse(parts[0]);
        } catch (MQFilterException refused) {
            return "refused";
        }
        try {
            return String.valueOf(expression.evaluate(new EvaluationContext() {
                @Override
                public Object get(String name) {
                    return properties.get(name);
                }

                @Override
                public Map<String, Object> keyValues() {
                    return properties;
                }
            }));
        } catch (Exception failed) {
            return "error";
        }
    }
}
