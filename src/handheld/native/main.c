/* main.c: the commands of the runner.
 *
 * The runner is the part of Handheld on a phone or board: it runs the launches of a plan file and reads files. What to
 * run was decided by the host. docs/runner.md explains the commands and the protocol of `serve`.
 */
#include "commands.h"
#include "info.h"
#include "serve.h"

static const char usage[] =
    "Usage: handheld-runner COMMAND [OPTIONS]\n"
    "\n"
    "Runs plan files of Handheld on an OpenCL device.\n"
    "\n"
    "Commands:\n"
    "  info                       describe this machine and its OpenCL devices as JSON\n"
    "  serve --folder DIR         answer a host on stdin and stdout\n"
    "  check PLAN                 check a plan file and list its graphs; needs no device\n"
    "  train PLAN --batches FILE  train; --steps N, --checkpoint FILE, --every N, --resume, --losses FILE\n"
    "  evaluate PLAN --batches FILE\n"
    "                             print the mean loss; --checkpoint FILE, --steps N\n"
    "  profile PLAN --batches FILE --out FILE.csv\n"
    "                             write the times of every command of some steps; --steps N (default 10)\n"
    "  tune PLAN                  time every graph of a plan; --seconds S for each (default 0.2)\n"
    "\n"
    "Options:\n"
    "  --batches FILE             batches: HANDBATC, see docs/runner.md\n"
    "  --steps N                  how many steps in all (default: once through the batches)\n"
    "  --checkpoint FILE          train: write the state here at the end; evaluate: read it from here\n"
    "  --every N                  write the checkpoint every N steps too\n"
    "  --resume                   go on from the checkpoint, if there is one\n"
    "  --losses FILE              write step,loss per line\n"
    "  --graph NAME               run this graph only\n"
    "  --device N                 the device by its index in info (default 0)\n"
    "  --folder DIR               keep binaries of programs here, so that the next start does not compile\n"
    "  --opencl LIB               load this OpenCL library (also: the variable HANDHELD_OPENCL)\n"
    "  --root DIR                 serve: look for files of sensors under DIR instead of /\n"
    "  --shared FD                serve: an open file that the host maps too; batches may come through it\n"
    "  --help, --version\n";

/* The options that take a text, and where it goes. */
static const char **place_of(struct options *options, const char *name) {
    const struct {
        const char *name, **place;
    } known[] = {
        {"--batches", &options->batches}, {"--checkpoint", &options->checkpoint}, {"--losses", &options->losses},
        {"--out", &options->out},         {"--graph", &options->graph},           {"--folder", &options->folder},
        {"--opencl", &options->library},  {"--root", &options->root},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
        if (strcmp(known[i].name, name) == 0) return known[i].place;
    return NULL;
}

/* The options that take a number. */
static uint64_t *number_of(struct options *options, const char *name) {
    if (strcmp(name, "--steps") == 0) return &options->steps;
    if (strcmp(name, "--every") == 0) return &options->every;
    if (strcmp(name, "--device") == 0) return &options->device;
    if (strcmp(name, "--shared") == 0) return &options->shared;
    return NULL;
}

static bool parse_one(struct options *options, const char *name, const char *value, int *used) {
    const char **place = place_of(options, name);
    uint64_t *number = number_of(options, name);
    char *end = NULL;
    *used = 2;
    if (strcmp(name, "--resume") == 0) {
        options->resume = true;
        *used = 1;
        return true;
    }
    bool seconds = strcmp(name, "--seconds") == 0;
    if (place == NULL && number == NULL && !seconds) return failed("there is no option %s. Try: handheld-runner --help", name);
    if (value == NULL) return failed("%s needs a value. Try: handheld-runner --help", name);
    if (place != NULL) *place = value;
    else if (number != NULL) *number = strtoull(value, &end, 10);
    else options->seconds = strtod(value, &end);
    bool digit = value[0] >= '0' && value[0] <= '9';
    if (place == NULL && (!digit || *end != 0 || !(options->seconds <= 600)))
        return failed("%s needs a number, not %s. Try: %s 10", name, value, name);
    return true;
}

static bool parse(struct options *options, int count, char **words) {
    options->seconds = 0.2;
    for (int i = 2, used = 1; i < count; i += used) {
        used = 1;
        if (words[i][0] == '-') {
            if (!parse_one(options, words[i], i + 1 < count ? words[i + 1] : NULL, &used)) return false;
        } else if (options->plan != NULL) return failed("one plan is enough, not also %s", words[i]);
        else options->plan = words[i];
    }
    return true;
}

static int command_info(const struct options *options) {
    struct bytes text = {0};
    describe(&text, options->library);
    put(&text, "\n", 1);
    bool ok = write_all(1, text.data, text.length);
    free(text.data);
    return ok && device_count > 0 ? 0 : 1;
}

static bool check(const struct options *options) {
    struct plan plan;
    uint64_t bytes = 0;
    if (options->plan == NULL) return failed("check needs a plan file. Try: handheld-runner check FILE.plan");
    if (!read_plan(&plan, options->plan)) return false;
    for (uint32_t i = 0; i < plan.segment_count; ++i) bytes += segment_bytes(&plan, i);
    print("%s is a plan for %.*s: %u graphs, %u launches, %u programs, %.1f MB of memory\n", options->plan,
          TEXT(&plan, plan.device->name), plan.graph_count, plan.launch_count, plan.program_count, (double)bytes / 1e6);
    for (uint32_t i = 0; i < plan.graph_count; ++i) {
        const struct plan_graph *graph = &plan.graphs[i];
        print("  %.*s: %u ops, %u launches, %u inputs, %u outputs\n", TEXT(&plan, graph->name), graph->nodes, graph->launches,
              graph->inputs, graph->outputs);
    }
    free_plan(&plan);
    return true;
}

int main(int count, char **words) {
    struct options options = {0};
    const char *command = count > 1 ? words[1] : "--help";
    bool ok;
    if (strcmp(command, "--help") == 0 || strcmp(command, "-h") == 0 || strcmp(command, "help") == 0) {
        print("%s", usage);
        return count > 1 ? 0 : 2;
    }
    if (strcmp(command, "--version") == 0) {
        print("handheld-runner %s, protocol %d, plan files %d, source %s\n", RUNNER_VERSION, PROTOCOL, PLAN_VERSION,
              HANDHELD_SOURCE);
        return 0;
    }
    if (!parse(&options, count, words)) ok = false;
    else if (strcmp(command, "info") == 0) return command_info(&options);
    else if (strcmp(command, "train") == 0) return command_train(&options);
    else if (strcmp(command, "evaluate") == 0) return command_evaluate(&options);
    else if (strcmp(command, "profile") == 0) return command_profile(&options);
    else if (strcmp(command, "tune") == 0) return command_tune(&options);
    else if (strcmp(command, "check") == 0) ok = check(&options);
    else if (strcmp(command, "serve") == 0) {
        if (options.folder != NULL)
            return serve(options.folder, options.library, options.root != NULL ? options.root : "/", (int)options.shared);
        ok = failed("serve needs a folder for plans and programs. Try: handheld-runner serve --folder DIR");
    } else ok = failed("there is no command %s. Try: handheld-runner --help", command);
    if (!ok) tell("handheld-runner: %s", problem);
    return ok ? 0 : 1;
}
