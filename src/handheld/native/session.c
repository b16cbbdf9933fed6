/* session.c: opens a plan on a device and closes it. */
#include "session.h"

bool device_failed(const struct session *session, const char *doing, cl_int code) {
    return failed("%s failed while %s: %s. Try: again; if it repeats, handheld verify names the op at fault",
                  session->device->name, doing, cl_error(code));
}

bool open_context(struct device *device, cl_context *context) {
    cl_int code = 0;
    *context = create_context(device, &code);
    if (code == 0) return true;
    *context = NULL;
    return failed("%s cannot be opened: %s. Try: handheld doctor", device->name, cl_error(code));
}

/* A plan holds what was decided for one device: sizes of work-groups, alignments, textures. */
static bool check_device(const struct session *session) {
    const struct plan *plan = &session->plan;
    char name[256];
    if (!copy_text(plan, plan->device->name, name, sizeof name) || strcmp(name, session->device->name) != 0)
        return failed("the plan was made for %.*s, but this device is %s. Try: make the plan again for this device",
                      TEXT(plan, plan->device->name), session->device->name);
    return true;
}

static bool bind_arg(struct session *session, cl_kernel kernel, uint32_t index, const struct plan_arg *arg, cl_int *code) {
    cl_mem memory = NULL;
    switch (arg->kind) {
    case ARG_BUFFER:
        if (!find_region(session, arg->a, arg->b, arg->c, &memory)) return false;
        *code = cl.SetKernelArg(kernel, index, sizeof memory, &memory);
        return true;
    case ARG_TEXTURE:
        if (!find_texture(session, arg->a, (uint32_t)arg->b, (uint32_t)arg->c, &memory)) return false;
        *code = cl.SetKernelArg(kernel, index, sizeof memory, &memory);
        return true;
    default: /* an int or a float: the 32 bits as they are */
        *code = cl.SetKernelArg(kernel, index, sizeof arg->a, &arg->a);
        return true;
    }
}

static bool bind_launch(struct session *session, uint32_t index) {
    const struct plan_launch *launch = &session->plan.launches[index];
    struct bound *bound = &session->bound[index];
    char name[256];
    cl_int code = 0;
    if (!copy_text(&session->plan, launch->kernel, name, sizeof name)) return failed("a kernel name is too long");
    bound->kernel = cl.CreateKernel(session->programs[launch->program], name, &code);
    if (code != 0) {
        bound->kernel = NULL;
        return failed("%s built a program without kernel %s: %s. Try: delete the folder binaries of the runner",
                      session->device->name, name, cl_error(code));
    }
    for (uint32_t i = 0; i < launch->args; ++i) {
        if (!bind_arg(session, bound->kernel, i, &session->plan.args[launch->first_arg + i], &code)) return false;
        if (code != 0)
            return failed("kernel %s does not take argument %u of the plan: %s. Try: write the plan again", name, i,
                          cl_error(code));
    }
    bound->node = launch->node;
    bound->dims = launch->dims;
    for (int d = 0; d < 3; ++d) {
        bound->global[d] = (size_t)launch->global[d];
        bound->local[d] = (size_t)launch->local[d];
    }
    return true;
}

static bool build_and_bind(struct session *session, const char *folder, progress report) {
    if (!build_programs(session, folder, report)) return false;
    session->bound = need((size_t)session->plan.launch_count + 1, sizeof *session->bound);
    for (uint32_t i = 0; i < session->plan.launch_count; ++i)
        if (!bind_launch(session, i)) return false;
    return true;
}

bool open_session(struct session *session, struct plan *plan, const struct device *device, cl_context context,
                  bool profiling, const char *folder, progress report) {
    cl_int code = 0;
    memset(session, 0, sizeof *session);
    session->plan = *plan;
    session->device = device;
    session->context = context;
    session->pinned = (plan->device->flags & 1) == 0;
    plan->file = -1; /* The session owns the plan now. */
    if (!check_device(session)) goto failure;
    session->plain = cl.CreateCommandQueue(context, device->id, profiling ? CL_QUEUE_PROFILING_ENABLE : 0, &code);
    if (code != 0) {
        session->plain = NULL;
        (void)failed("%s has no command queue: %s. Try: handheld doctor", device->name, cl_error(code));
        goto failure;
    }
    session->queue = session->plain;
    int64_t begin = clock_ns();
    if (!allocate(session)) goto failure;
    session->allocate_ns = clock_ns() - begin;
    begin = clock_ns();
    /* The device fills the memory while the host builds. */
    (void)cl.Flush(session->queue);
    if (!build_and_bind(session, folder, report)) goto failure;
    session->build_ns = clock_ns() - begin;
    if (!write_values(session) || !finish(session) || !open_recorder(session, NULL)) goto failure;
    return true;
failure:
    close_session(session);
    return false;
}

bool finish(struct session *session) {
    cl_int code = cl.Finish(session->queue);
    for (uint32_t i = 0; i < session->step_count; ++i) (void)cl.ReleaseEvent(session->steps[i]);
    session->step_count = 0;
    session->idle = code == 0;
    return code == 0 || device_failed(session, "it finished its work", code);
}

bool is_idle(struct session *session) {
    if (session->idle) return true;
    return session->step_count > 0 && is_done(session->steps[session->step_count - 1]);
}

void close_session(struct session *session) {
    if (session->queue != NULL) (void)finish(session);
    if (session->timed != NULL) (void)cl.Finish(session->timed);
    for (size_t i = 0; i < session->command_count; ++i) (void)cl.ReleaseEvent(session->command_events[i]);
    free(session->commands);
    free(session->command_events);
    free_staging(session);
    close_recorder(session); /* before the kernels that it holds */
    free_programs(session);
    free_memory(session);
    if (session->mark != NULL) (void)cl.ReleaseMemObject(session->mark);
    if (session->timed != NULL) (void)cl.ReleaseCommandQueue(session->timed);
    if (session->plain != NULL) (void)cl.ReleaseCommandQueue(session->plain);
    if (session->device != NULL) free_plan(&session->plan);
    memset(session, 0, sizeof *session);
}
