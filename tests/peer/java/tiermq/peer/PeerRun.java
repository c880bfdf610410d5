package tiermq.peer;

import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import java.util.function.Predicate;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.awaitility.Awaitility;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.manipulation.Filter;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Runs JUnit classes as they are asked for, a line each: the class, then methods to leave out, separated by spaces.
 * Tells what happened as JSON lines: {"passed": …}, {"failed": …, "why": …}, {"assumed": …, "why": …},
 * {"ignored": …}, and {"done": class}. Ends with its input.
 */
public final class PeerRun extends RunListener {
    /**
     * Its condition asserts that two answers of a broker agree, and asks for them over the wire, at two moments: while
     * the group consumes, its offset moves between them, and the condition is looked at again. In a broker of the same
     * process that was all but one moment (RocketMQ's own test does without this comparison since 5.5.0). The answer
     * that was asked for later may be ahead, and nothing else: any other difference fails at once, and all must hold
     * at one look, within three minutes. Conditions of other classes assert nothing that moves.
     */
    private static final Set<String> LOOKS_TWICE = Set.of("org.apache.rocketmq.test.offset.OffsetResetIT");
    private static final Pattern AHEAD = Pattern.compile("expected:<(\\d+)> but was:<(\\d+)>");
    private final PrintStream events;
    private final Set<Description> over = new HashSet<>();

    private PeerRun(PrintStream events) {
        this.events = events;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream events = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err);
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = asked.readLine(); line != null; line = asked.readLine()) {
            String[] words = line.split(" ");
            PeerRun run = new PeerRun(events);
            Awaitility.reset();
            if (LOOKS_TWICE.contains(words[0])) {
                Predicate<Throwable> moved = PeerRun::hasMoved;
                Awaitility.ignoreExceptionsByDefaultMatching(moved);
            }
            try {
                JUnitCore core = new JUnitCore();
                core.addListener(run);
                Set<String> without = new HashSet<>(Arrays.asList(words).subList(1, words.length));
                core.run(Request.aClass(Class.forName(words[0])).filterWith(run.all(without)));
            } catch (Throwable error) {
                run.tell("failed", words[0], error);
            }
            run.tell("done", words[0], null);
        }
        System.exit(0); // The clients' own threads would keep the process alive.
    }

    private static boolean hasMoved(Throwable error) {
        Matcher found = AHEAD.matcher(String.valueOf(error.getMessage()));
        return error instanceof AssertionError && found.matches()
            && Long.parseLong(found.group(1)) > Long.parseLong(found.group(2));
    }

    private Filter all(Set<String> without) {
        return new Filter() {
            @Override
            public boolean shouldRun(Description test) {
                return !test.isTest() || !without.contains(test.getMethodName());
            }

            @Override
            public String describe() {
                return "all but " + without;
            }
        };
    }

    @Override
    public void testFailure(Failure failure) {
        over.add(failure.getDescription());
        tell("failed", name(failure.getDescription()), failure.getException());
    }

    @Override
    public void testAssumptionFailure(Failure failure) {
        over.add(failure.getDescription());
        tell("assumed", name(failure.getDescription()), failure.getException());
    }

    @Override
    public void testIgnored(Description test) {
        tell("ignored", name(test), null);
    }

    @Override
    public void testFinished(Description test) {
        if (!over.contains(test)) {
            tell("passed", name(test), null);
        }
    }

    private static String name(Description test) {
        return test.getMethodName() == null ? "(class)" : test.getMethodName();
    }

    private void tell(String what, String name, Throwable why) {
        JSONObject event = new JSONObject();
        event.put(what, name);
        if (why != null) {
            StringBuilder text = new StringBuilder(String.valueOf(why));
            for (StackTraceElement each : why.getStackTrace()) {
                if (each.getClassName().startsWith("org.apache.rocketmq.test")) {
                    text.append(" at ").append(each);
                }
            }
            for (Throwable cause = why.getCause(); cause != null; cause = cause.getCause()) {
                text.append(" caused by ").append(cause);
            }
            event.put("why", text.toString());
        }
        events.println(event.toJSONString());
    }
}
