/*
 * An optimizer rule of Spark: each read of our source in a plan becomes a read of its own, with the condition that the
 * plan puts on it, and only the columns that the plan needs. `query_pruning.py` compiles and installs it.
 *
 *     Project [body]                                     Project [body]
 *       Filter topic = 'rare'                     ─►       Filter topic = 'rare'        Spark still applies it
 *         Scan tiermq, 29 columns                            Scan tiermq, 2 columns, option scanCondition
 *
 * Spark's own pushdown keeps the pushed filters in the relation, where the next use of it finds them (4.3). Nothing is
 * changed in a relation here: a new one takes its place, for this plan only. The same read of the same relation gets
 * the same new relation, so that a frame which is used twice reads the same messages.
 *
 * Compiled by Janino, which knows neither lambdas nor bridge methods: hence raw types.
 */
package tiermq;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.File;
import java.io.IOException;
import java.lang.ref.Cleaner;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;

public final class PruneMessages extends Rule {
    private static final String CONDITION = "scanCondition";
    private static final String SNAPSHOT = "scanSnapshot";
    private static final Cleaner CLEANER = Cleaner.create();
    private final String format;
    private final String module;
    private final String className;
    private final String tablePrefix;
    private final String cheapestColumn;
    private final String snapshotFolder;
    private volatile boolean isUnsuited = false;
    private final Map reads = Collections.synchronizedMap(new WeakHashMap());

    /* `format`: the name of the source, whose class in Python is `className` of `module`. */
    public PruneMessages(
            String format, String module, String className, String tablePrefix, String cheapestColumn,
            String snapshotFolder) {
        this.format = format;
        this.module = module;
        this.className = className;
        this.tablePrefix = tablePrefix;
        this.cheapestColumn = cheapestColumn;
        this.snapshotFolder = snapshotFolder;
    }

    public TreeNode apply(TreeNode plan) {
        if (this.isUnsuited) {
            return plan;
        }
        try {
            return this.pruned((LogicalPlan) plan, null, null);
        } catch (LinkageError error) {
            this.isUnsuited = true;
            this.log().warn("this Spark has other plans than 4.3: conditions prune nothing, everything is read", error);
            return plan;
        }
    }

    /* `needed` are the columns that nodes above need, null for all of them. */
    private LogicalPlan pruned(LogicalPlan node, final Expression condition, final AttributeSet needed) {
        if (node instanceof DataSourceV2ScanRelation) {
            DataSourceV2ScanRelation scan = (DataSourceV2ScanRelation) node;
            return this.isOurs(scan) ? this.read(scan, condition, needed) : node;
        }
        Expression ownCondition = null;
        AttributeSet ownNeeds = null;
        if (node instanceof Project) {
            ownNeeds = node.references();
        } else if (node instanceof Filter) {
            ownCondition = ((Filter) node).condition();
            ownNeeds = needed == null ? null : needed.$plus$plus(node.references());
        }
        final Expression below = ownCondition;
        final AttributeSet neededBelow = ownNeeds;
        return (LogicalPlan) node.mapChildren(new AbstractFunction1() {
            public Object apply(Object child) {
                return PruneMessages.this.pruned((LogicalPlan) child, below, neededBelow);
            }
        });
    }

    private boolean isOurs(DataSourceV2ScanRelation scan) {
        DataSourceV2Relation relation = scan.relation();
        if (!(relation.table() instanceof PythonTable) || relation.options().containsKey(SNAPSHOT)) {
            return false;
        }
        String name = relation.table().name();
        return name.equalsIgnoreCase(this.format) || name.startsWith(this.tablePrefix);
    }

    private LogicalPlan read(DataSourceV2ScanRelation scan, Expression condition, AttributeSet needed) {
        DataSourceV2Relation relation = scan.relation();
        Seq output = this.columns(scan.output(), needed);
        StructType schema = new StructType();
        for (Iterator each = output.iterator(); each.hasNext();) {
            AttributeReference column = (AttributeReference) each.next();
            schema = schema.add(column.name(), column.dataType(), column.nullable());
        }
        Map options = new HashMap(relation.options().asCaseSensitiveMap());
        if (condition != null) {
            options.put(CONDITION, SQLConf.get().sessionLocalTimeZone() + " " + this.unqualified(condition).sql());
        }
        Read made = this.made(relation.table(), schema, options);
        Object[] parts = this.parts(relation);
        parts[0] = made.table;
        parts[1] = output;
        parts[4] = made.options;
        Object[] scanParts = this.parts(scan);
        scanParts[0] = relation.makeCopy(parts);
        scanParts[1] = made.table.newScanBuilder(made.options).build();
        scanParts[2] = output;
        return (LogicalPlan) scan.makeCopy(scanParts);
    }

    private Object[] parts(LogicalPlan node) {
        List parts = new ArrayList();
        for (Iterator each = node.productIterator(); each.hasNext();) {
            parts.add(each.next());
        }
        return parts.toArray();
    }

    /* At least one column: rows without columns would have to be counted by it. */
    private Seq columns(Seq output, AttributeSet needed) {
        if (needed == null) {
            return output;
        }
        List kept = new ArrayList();
        AttributeReference cheapest = (AttributeReference) output.head();
        for (Iterator each = output.iterator(); each.hasNext();) {
            AttributeReference column = (AttributeReference) each.next();
            if (needed.contains(column)) {
                kept.add(column);
            }
            if (column.name().equals(this.cheapestColumn)) {
                cheapest = column;
            }
        }
        if (kept.isEmpty()) {
            kept.add(cheapest);
        }
        return CollectionConverters.asScala(kept).toSeq();
    }

    private Expression unqualified(Expression condition) {
        return (Expression) condition.transform(new AbstractPartialFunction() {
            public boolean isDefinedAt(Object node) {
                return node instanceof AttributeReference;
            }

            public Object applyOrElse(Object node, scala.Function1 otherwise) {
                if (node instanceof AttributeReference) {
                    return ((AttributeReference) node).withQualifier((Seq) scala.collection.immutable.Nil$.MODULE$);
                }
                return otherwise.apply(node);
            }
        });
    }

    private Read made(Table table, StructType schema, Map options) {
        synchronized (this.reads) {
            Reads reads = (Reads) this.reads.get(table);
            if (reads == null) {
                reads = new Reads(this.snapshotFolder + "/" + java.util.UUID.randomUUID());
                this.reads.put(table, reads);
                CLEANER.register(table, new SnapshotEnd(reads.snapshot));
            }
            String key = schema.json() + "\n" + options.get(CONDITION);
            Read read = (Read) reads.byKey.get(key);
            if (read == null) {
                options.put(SNAPSHOT, reads.snapshot);
                PythonDataSourceV2 source = new PythonDataSourceV2();
                source.setShortName(table.name());
                if (table.name().equalsIgnoreCase(this.format)) {
                    this.setCreated(source, schema, options);
                }
                read = new Read(new PythonTable(source, table.name(), schema), new CaseInsensitiveStringMap(options));
                reads.byKey.put(key, read);
            }
            return read;
        }
    }

    /* The source in Python, pickled here: a call of its class with the options. That saves a Python process. */
    private void setCreated(PythonDataSourceV2 source, StructType schema, Map options) {
        try {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            DataOutputStream pickle = new DataOutputStream(bytes);
            pickle.write(new byte[] {(byte) 0x80, 2});  // Protocol 2.
            pickle.writeBytes("c" + this.module + "\n" + this.className + "\n}(");
            for (java.util.Iterator each = options.entrySet().iterator(); each.hasNext();) {
                Map.Entry option = (Map.Entry) each.next();
                this.writeText(pickle, (String) option.getKey());
                this.writeText(pickle, (String) option.getValue());
            }
            pickle.write(new byte[] {'u', (byte) 0x85, 'R', '.'});
            Field created = PythonDataSourceV2.class.getDeclaredField("dataSourceInPython");
            created.setAccessible(true);
            created.set(source, new PythonDataSourceCreationResult(bytes.toByteArray(), schema));
        } catch (Exception error) {
            throw new NoSuchFieldError(error.toString());
        }
    }

    private void writeText(DataOutputStream pickle, String text) throws IOException {
        byte[] encoded = text.getBytes(StandardCharsets.UTF_8);
        pickle.writeByte('X');
        pickle.writeInt(Integer.reverseBytes(encoded.length));
        pickle.write(encoded);
    }

    private static final class Reads {
        final String snapshot;
        final Map byKey = new HashMap();

        Reads(String snapshot) {
            this.snapshot = snapshot;
        }
    }

    /* Removes the file of a snapshot when no frame has its relation any more. */
    private static final class SnapshotEnd implements Runnable {
        private final String snapshot;

        SnapshotEnd(String snapshot) {
            this.snapshot = snapshot;
        }

        public void run() {
            new File(this.snapshot).delete();
        }
    }

    private static final class Read {
        final PythonTable table;
        final CaseInsensitiveStringMap options;

        Read(PythonTable table, CaseInsensitiveStringMap options) {
            this.table = table;
            this.options = options;
        }
    }
}
