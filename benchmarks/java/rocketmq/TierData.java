/** Names, keys and chance, as benchmarks/compare/tier_data.py has them: both sides must do the very same work. */
final class TierData {
    private long state;

    TierData(long seed) {
        state = seed;
    }

    /** The next of a row of numbers below `limit`. */
    long below(long limit) {
        state = state * 6364136223846793005L + 1442695040888963407L;
        return (state >>> 33) % limit;
    }

    static String topic(int number) {
        return String.format("bench-tier-%03d", number);
    }

    /** The one key of the n-th message. */
    static String key(long number) {
        return String.format("%016x", number * 0x9E3779B97F4A7C15L);
    }

    private TierData() {
    }
}
