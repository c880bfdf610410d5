import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/**
 * Serves rounds of one work over stdin and stdout, so that the virtual machine stays warm between rounds.
 *
 * <pre>
 * prepare key=value ...   build files and sample data, once          -> {"ready":true}
 * run key=value ...       reset (untimed), then one timed round      -> {"messages":n,"bytes":b,"seconds":s,...}
 * quit                    end (end of input does the same)
 * </pre>
 *
 * One line in, one JSON line out. Values hold no blanks.
 */
final class Rounds {
    /** One benchmark: what to build before, what to undo between rounds, and what to time. */
    interface Work {
        void prepare(Parameters parameters) throws Exception;

        void reset(Parameters parameters) throws Exception;

        /** The timed part. Returns how much was done, and a value that depends on all of it. */
        Done run(Parameters parameters) throws Exception;
    }

    record Done(long messages, long bytes, long check) {
    }

    /** The key=value words of one request line. */
    static final class Parameters {
        private final Map<String, String> values = new HashMap<>();

        Parameters(String[] words) {
            for (int i = 1; i < words.length; i++) {
                int equals = words[i].indexOf('=');
                if (equals < 1) {
                    throw new IllegalArgumentException("expected key=value, found " + words[i]);
                }
                values.put(words[i].substring(0, equals), words[i].substring(equals + 1));
            }
        }

        String text(String key) {
            String value = values.get(key);
            if (value == null) {
                throw new IllegalArgumentException("the request lacks " + key + "=");
            }
            return value;
        }

        long number(String key) {
            return Long.parseLong(text(key));
        }
    }

    static void serve(Work work) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            String[] words = line.trim().split(" +");
            Parameters parameters = new Parameters(words);
            if (words[0].equals("prepare")) {
                work.prepare(parameters);
                System.out.println("{\"ready\":true}");
            } else if (words[0].equals("run")) {
                System.out.println(oneRound(work, parameters));
            } else {
                throw new IllegalArgumentException("expected prepare, run or quit, found " + words[0]);
            }
            System.out.flush();
        }
    }

    private static String oneRound(Work work, Parameters parameters) throws Exception {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        work.reset(parameters);
        long cpuBefore = system.getProcessCpuTime();
        long before = System.nanoTime();
        Done done = work.run(parameters);
        long nanos = System.nanoTime() - before;
        long cpuNanos = system.getProcessCpuTime() - cpuBefore;
        return "{\"messages\":" + done.messages + ",\"bytes\":" + done.bytes + ",\"seconds\":" + nanos / 1e9
            + ",\"cpu_seconds\":" + cpuNanos / 1e9 + ",\"check\":" + done.check + "}";
    }

    private Rounds() {
    }
}
