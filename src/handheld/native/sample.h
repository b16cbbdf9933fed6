/* The sampler: a child process that reads files at given periods into a ring of shared memory.
 *
 *   sampler_fork    makes the child; call it before OpenCL is loaded, whose threads do not survive a fork
 *   sampler_start   SAMPLE: what to read
 *   sampler_take    SAMPLES: what was read since the last call
 *   sampler_stop    SAMPLE_STOP: reads everything once more and stops
 *
 * A list is u32 n, then n entries: u32 id, u32 period in us, u32 most bytes to read, u32 length of the path, path.
 * Entries with the same upper 16 bits of the id are one source: they stand together, have one period and are read
 * together.
 *
 * A reading is u32 id, u32 length, i64 time (CLOCK_MONOTONIC in ns, the middle of the read), content. The length has
 * FILE_UNREADABLE set if the content is a reason, and is SAMPLE_SAME without a content if nothing changed.
 *
 * What sampler_take returns ends with a status, with the id SAMPLE_STATUS. Its content is i64 numbers: ns since the
 * start, processor time of the sampler in ns, readings that were dropped because the ring was full, 1000 times the
 * factor by which periods are stretched; then per source: upper 16 bits of its ids, readings, missed deadlines, ns
 * spent reading, the longest of them, processor time in ns.
 */
#ifndef HANDHELD_SAMPLE_H
#define HANDHELD_SAMPLE_H

#include <stddef.h>

#define SAMPLE_SAME 0x7fffffffu
#define SAMPLE_STATUS 0xffffffffu

struct sampler;

/* Returns NULL if there is no memory or no process; sampler_start then says so. */
struct sampler *sampler_fork(const char *root);

/* Each returns NULL, or the sentence of an error. Answers are made with malloc. */
const char *sampler_start(struct sampler *sampler, const unsigned char *list, size_t bytes);
const char *sampler_take(struct sampler *sampler, unsigned char **answer, size_t *bytes);
const char *sampler_stop(struct sampler *sampler, unsigned char **answer, size_t *bytes);

/* Ends the child and frees the memory. */
void sampler_end(struct sampler *sampler);

#endif
