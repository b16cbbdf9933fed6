/* train.c: trains and evaluates a plan on batches from a file. A training that was stopped, by a signal or by a dead
 * battery, goes on from its last checkpoint with --resume and gives the same bits as one that was not. */
#include "commands.h"

#define MOST_GRAPHS 16
#define LINES 20 /* of progress */

static volatile int stopped; /* the signal that asked to stop */

static void on_signal(int number) { stopped = number; }

/* Programs are compiled from source on every driver, but a plan avoids only what one driver computes wrongly. */
static void compare_drivers(const struct plan *plan, const struct device *device) {
    char driver[520];
    struct str wanted = plan->device->driver;
    (void)snprintf(driver, sizeof driver, "%s; %s", device->platform_version, device->driver);
    if (wanted.length == strlen(driver) && memcmp(plan->strings + wanted.offset, driver, wanted.length) == 0) return;
    tell("note: the plan was made for driver %.*s, but %s has driver %s. Programs are compiled from source for this driver, "
         "but what only this driver computes wrongly is not avoided. Try: make the plan again for this device",
         TEXT(plan, wanted), device->name, driver);
}

bool open_task(const struct options *options, struct session *session, cl_context *context) {
    struct plan plan;
    *context = NULL;
    memset(session, 0, sizeof *session);
    if (options->plan == NULL) return failed("the command needs a plan file. Try: handheld-runner --help");
    if (options->folder != NULL && !make_folder(options->folder)) return false;
    if (!read_plan(&plan, options->plan)) return false;
    bool ok = open_opencl(options->library);
    if (ok && options->device >= device_count)
        ok = failed("there is no device %llu; there are %u. Try: handheld-runner info", (unsigned long long)options->device,
                    device_count);
    if (!ok || !open_context(&devices[options->device], context)) {
        free_plan(&plan);
        return false;
    }
    if (open_session(session, &plan, &devices[options->device], *context, false, options->folder, NULL)) {
        compare_drivers(&session->plan, session->device);
        return true;
    }
    close_task(session, *context);
    *context = NULL;
    return false;
}

void close_task(struct session *session, cl_context context) {
    if (session->device != NULL) close_session(session);
    if (context != NULL) (void)cl.ReleaseContext(context);
}

/* What is run for a batch: the graph of the option, or every graph of an update. */
static bool choose_graphs(const struct plan *plan, const char *wanted, uint32_t *graphs, uint32_t *count) {
    *count = 0;
    if (wanted != NULL) {
        int64_t found = find_graph(plan, wanted);
        if (found < 0) return failed("the plan has no graph %s. Try: handheld-runner check, which lists them", wanted);
        graphs[(*count)++] = (uint32_t)found;
        return true;
    }
    for (uint32_t i = 0; i < plan->graph_count; ++i) {
        char name[256];
        if (!copy_text(plan, plan->graphs[i].name, name, sizeof name)) continue;
        /* evaluate and predict change nothing; train@7 is train for a smaller batch. */
        if (strcmp(name, "evaluate") == 0 || strcmp(name, "predict") == 0 || strchr(name, '@') != NULL) continue;
        if (*count == MOST_GRAPHS) return failed("the plan has more than %d graphs to train. Try: --graph NAME", MOST_GRAPHS);
        graphs[(*count)++] = i;
    }
    return *count > 0 || failed("the plan has no graph to train. Try: handheld-runner check, which lists them");
}

/* The output that is the loss: the first, one float. */
static const struct plan_output *loss_of(const struct plan *plan, uint32_t graph) {
    const struct plan_graph *found = &plan->graphs[graph];
    const struct plan_output *first = found->outputs > 0 ? &plan->outputs[found->first_output] : NULL;
    return first != NULL && first->bytes == 4 && first->type == TYPE_F32 ? first : NULL;
}

/* ── losses ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Opens the file of losses (`step,loss` per line) and drops the lines after `steps`. */
static bool open_losses(const char *path, uint64_t steps, int *file) {
    *file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (*file < 0) return failed("%s cannot be written: %s", path, reason());
    char piece[4096], line[32] = "";
    size_t used = 0, got = 1;
    off_t keep = 0, at = 0;
    for (bool more = steps > 0; more && got > 0;) {
        (void)read_all(*file, piece, sizeof piece, &got);
        for (size_t i = 0; i < got && more; ++i) {
            ++at;
            if (piece[i] != '\n') {
                if (used + 1 < sizeof line) line[used++] = piece[i];
                continue;
            }
            line[used] = 0;
            used = 0;
            more = line[0] == 's' || strtoull(line, NULL, 10) <= steps;
            if (more) keep = at;
        }
    }
    if (ftruncate(*file, keep) != 0 || lseek(*file, keep, SEEK_SET) < 0 ||
        (keep == 0 && !write_all(*file, "step,loss\n", 10)))
        return failed("%s cannot be written: %s", path, reason());
    return true;
}

struct training {
    struct session session;
    cl_context context;
    struct batches batches;
    uint32_t graphs[MOST_GRAPHS], graph_count;
    const struct plan_output *loss;
    struct reading reads[IN_FLIGHT];
    uint64_t read_steps[IN_FLIGHT];
    uint32_t read_count;
    int losses;
    uint64_t begun, steps, total; /* steps that were done before, are done now, and will be done */
    double sum;
    bool quiet; /* no line per step */
};

/* Waits for the oldest loss and writes it down. */
static bool take_loss(struct training *work) {
    float loss = 0;
    uint64_t step = work->read_steps[0];
    bool ok = end_read(&work->reads[0]);
    if (ok) memcpy(&loss, work->reads[0].host, sizeof loss);
    free(work->reads[0].host);
    --work->read_count;
    memmove(work->reads, work->reads + 1, work->read_count * sizeof *work->reads);
    memmove(work->read_steps, work->read_steps + 1, work->read_count * sizeof *work->read_steps);
    if (!ok) return false;
    work->sum += (double)loss;
    char line[64];
    int length = snprintf(line, sizeof line, "%llu,%.9g\n", (unsigned long long)step, (double)loss);
    if (work->losses >= 0 && !write_all(work->losses, line, (size_t)length))
        return failed("the losses cannot be written: %s. Try: free some storage, then --resume", reason());
    uint64_t between = (work->total + LINES - 1) / LINES;
    if (work->quiet) return true;
    if (step == work->total || step == work->begun + 1 || step % between == 0)
        print("step %llu of %llu: loss %.6g\n", (unsigned long long)step, (unsigned long long)work->total, (double)loss);
    return true;
}

static bool take_losses(struct training *work) {
    while (work->read_count > 0)
        if (!take_loss(work)) return false;
    return true;
}

static bool run_step(struct training *work) {
    struct session *session = &work->session;
    if (!seek_batch(&work->batches, work->steps)) return false;
    for (uint32_t g = 0; g < work->graph_count; ++g)
        if (!send_inputs(session, &work->batches, work->graphs[g]) || !run_graph(session, work->graphs[g])) return false;
    ++work->steps;
    if (work->loss == NULL) return true;
    if (work->read_count == IN_FLIGHT && !take_loss(work)) return false;
    struct reading *reading = &work->reads[work->read_count];
    if (!begin_read(session, work->loss->segment, work->loss->offset, sizeof(float), reading)) return false;
    work->read_steps[work->read_count++] = work->steps;
    return true;
}

/* ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────── */

static bool prepare(const struct options *options, struct training *work, const char *graph) {
    const struct plan *plan = &work->session.plan;
    if (options->batches == NULL) return failed("the command needs batches. Try: --batches FILE");
    if (!open_task(options, &work->session, &work->context)) return false;
    (void)signal(SIGINT, on_signal); /* After the builds: LLVM, inside PoCL, sets handlers of its own. */
    (void)signal(SIGTERM, on_signal);
    (void)signal(SIGPIPE, SIG_IGN); /* A training does not end because nobody reads its lines any more. */
    if (!choose_graphs(plan, graph, work->graphs, &work->graph_count) ||
        !open_batches(&work->batches, options->batches, plan, work->graphs, work->graph_count))
        return false;
    work->loss = loss_of(plan, work->graphs[work->graph_count - 1]);
    return true;
}

static bool resume(const struct options *options, struct training *work) {
    int64_t changed;
    uint64_t bytes;
    if (options->checkpoint == NULL) return failed("--resume needs the checkpoint. Try: --checkpoint FILE --resume");
    if (!file_age(options->checkpoint, &changed, &bytes)) {
        print("%s does not exist yet: training starts at step 0\n", options->checkpoint);
        return true;
    }
    if (!read_checkpoint(&work->session, options->checkpoint, &work->begun)) return false;
    print("resumed %s at step %llu\n", options->checkpoint, (unsigned long long)work->begun);
    work->steps = work->begun;
    return true;
}

static bool save(const struct options *options, struct training *work) {
    if (!take_losses(work)) return false;
    return options->checkpoint == NULL || write_checkpoint(&work->session, options->checkpoint, work->steps);
}

/* Finds out before the training that a checkpoint cannot be written, not after hours of it. */
static bool check_writable(const char *path) {
    struct new_file made;
    if (path == NULL) return true;
    bool ok = begin_file(&made, path);
    if (ok) drop_file(&made);
    return ok;
}

static bool train(const struct options *options, struct training *work) {
    if (!check_writable(options->checkpoint)) return false;
    if (!prepare(options, work, options->graph)) return false;
    if (options->resume && !resume(options, work)) return false;
    if (options->losses != NULL && !open_losses(options->losses, work->begun, &work->losses)) return false;
    work->total = options->steps > 0 ? options->steps : work->batches.count;
    int64_t begin = clock_ns();
    while (work->steps < work->total && stopped == 0) {
        if (!run_step(work)) return false;
        bool due = options->every > 0 && work->steps % options->every == 0 && work->steps < work->total;
        if (due && !save(options, work)) return false;
    }
    if (!save(options, work) || !finish(&work->session)) return false;
    double seconds = (double)(clock_ns() - begin) * 1e-9;
    uint64_t done = work->steps - work->begun;
    print("%llu steps in %.3f s", (unsigned long long)done, seconds);
    if (done > 0) print(" (%.3f ms per step)", seconds * 1e3 / (double)done);
    print("%s%s\n", options->checkpoint != NULL ? ", checkpoint " : "", options->checkpoint != NULL ? options->checkpoint : "");
    return true;
}

static void end_training(struct training *work) {
    while (work->read_count > 0) {
        (void)end_read(&work->reads[work->read_count - 1]);
        free(work->reads[--work->read_count].host);
    }
    if (work->losses >= 0) (void)close(work->losses);
    if (work->batches.path != NULL && work->batches.file >= 0) (void)close(work->batches.file);
    close_task(&work->session, work->context);
}

int command_train(const struct options *options) {
    static struct training work;
    work.losses = -1;
    bool ok = train(options, &work);
    if (!ok) tell("handheld-runner: %s", problem);
    else if (stopped != 0)
        tell("stopped by a signal after step %llu%s", (unsigned long long)work.steps,
             options->checkpoint != NULL ? "; the checkpoint is written. Try: --resume to go on" : "");
    end_training(&work);
    return !ok ? 1 : stopped != 0 ? 128 + stopped : 0;
}

static bool evaluate(const struct options *options, struct training *work) {
    uint64_t steps = 0;
    if (!prepare(options, work, options->graph != NULL ? options->graph : "evaluate")) return false;
    if (work->loss == NULL) return failed("the graph has no loss. Try: --graph NAME of a graph with one");
    if (options->checkpoint != NULL && !read_checkpoint(&work->session, options->checkpoint, &steps)) return false;
    work->total = options->steps > 0 ? options->steps : work->batches.count;
    work->quiet = true;
    while (work->steps < work->total && stopped == 0)
        if (!run_step(work)) return false;
    if (!take_losses(work)) return false;
    print("mean loss of %llu batches: %.9g\n", (unsigned long long)work->steps,
          work->steps > 0 ? work->sum / (double)work->steps : 0.0);
    return true;
}

int command_evaluate(const struct options *options) {
    static struct training work;
    work.losses = -1;
    bool ok = evaluate(options, &work);
    if (!ok) tell("handheld-runner: %s", problem);
    end_training(&work);
    return !ok ? 1 : stopped != 0 ? 128 + stopped : 0;
}

/* Writes a table of the recorded commands: the columns of store/commands.py, with the number of the step before them. */
static bool write_table(const char *path, const struct bytes *rows, const uint64_t *ends, uint64_t steps) {
    static const char *const names[] = {"launch", "upload", "download", "copy"};
    struct new_file made;
    struct bytes text = {0};
    const struct command *commands = (const void *)rows->data;
    uint64_t step = 0;
    say(&text, "step,kind,op,bytes,host_begin,host_end,queued,submitted,started,ended\n");
    for (size_t i = 0; i < rows->length / sizeof *commands; ++i) {
        const struct command *one = &commands[i];
        while (step + 1 < steps && i >= ends[step]) ++step;
        say(&text, "%llu,%s,%lld,%lld,%lld,%lld,%lld,%lld,%lld,%lld\n", (unsigned long long)step + 1, names[one->kind],
            (long long)one->node, (long long)one->bytes, (long long)one->host_begin, (long long)one->host_end,
            (long long)one->queued, (long long)one->submitted, (long long)one->started, (long long)one->ended);
    }
    bool ok = begin_file(&made, path);
    if (ok && !write_all(made.file, text.data, text.length)) {
        ok = failed("%s cannot be written: %s", path, reason());
        drop_file(&made);
    } else if (ok) ok = end_file(&made, true);
    free(text.data);
    return ok;
}

static bool profile(const struct options *options, struct training *work, uint64_t *ends, struct bytes *rows) {
    double busy = 0;
    if (options->out == NULL) return failed("profile needs a file for its table. Try: --out FILE.csv");
    if (!prepare(options, work, options->graph)) return false;
    work->total = options->steps > 0 ? options->steps : 10;
    work->quiet = true;
    uint64_t recorded = 0;
    if (!run_step(work) || !take_losses(work) || !set_recording(&work->session, true)) return false;
    for (; recorded < work->total && stopped == 0; ++recorded) {
        if (!run_step(work) || !take_losses(work)) return false;
        ends[recorded] = work->session.command_count;
    }
    if (!take_commands(&work->session, rows) || !set_recording(&work->session, false)) return false;
    const struct command *commands = (const void *)rows->data;
    size_t count = rows->length / sizeof *commands;
    for (size_t i = 0; i < count; ++i) busy += (double)(commands[i].ended - commands[i].started);
    if (!write_table(options->out, rows, ends, recorded)) return false;
    print("%llu steps, %zu commands, device busy %.3f ms per step: %s\n", (unsigned long long)recorded, count,
          recorded > 0 ? busy * 1e-6 / (double)recorded : 0.0, options->out);
    return true;
}

int command_profile(const struct options *options) {
    static struct training work;
    struct bytes rows = {0};
    uint64_t *ends = need((size_t)least(options->steps > 0 ? options->steps : 10, 1000000), sizeof *ends);
    work.losses = -1;
    bool ok = options->steps <= 1000000 ? profile(options, &work, ends, &rows) : failed("--steps is at most 1,000,000 here");
    if (!ok) tell("handheld-runner: %s", problem);
    end_training(&work);
    free(ends);
    free(rows.data);
    return !ok ? 1 : stopped != 0 ? 128 + stopped : 0;
}

static int by_size(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right ? 1 : 0;
}

int command_tune(const struct options *options) {
    struct session session;
    cl_context context;
    bool ok = open_task(options, &session, &context);
    for (uint32_t i = 0; ok && i < session.plan.graph_count; ++i) {
        struct bytes samples = {0};
        /* Some drivers compile at the first launch. */
        ok = submit_graph(&session, i, NULL) && finish(&session) && time_graph(&session, i, options->seconds, &samples);
        size_t count = samples.length / sizeof(double);
        if (ok) {
            double *times = (void *)samples.data;
            qsort(times, count, sizeof *times, by_size);
            print("%.*s: %.3f us, median of %zu samples; fastest %.3f us\n", TEXT(&session.plan, session.plan.graphs[i].name),
                  times[count / 2] * 1e6, count, times[0] * 1e6);
        }
        free(samples.data);
    }
    if (!ok) tell("handheld-runner: %s", problem);
    close_task(&session, context);
    return ok ? 0 : 1;
}
