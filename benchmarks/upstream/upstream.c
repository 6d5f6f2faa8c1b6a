// A stub of several vLLM replicas in one thread: OpenAI answers at once or token by token, and a metrics page of real size.
//
// Every replica is a listening port. What a request asks for can be steered from its prompt, which every gateway passes
// on unaltered: "gap_us=0", "ttft_us=50000" and "chunks=1000" anywhere in the body override the flags of that name.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wire.h"

#define MAX_FILES 65536
#define MAX_EVENTS 512
#define READ_SIZE 16384
#define LATE (5 * MILLISECOND)  // a chunk that leaves this long after its time tells that the machine was too busy

typedef struct connection {
    int fd, replica;
    buffer in;
    const char *unsent;  // rest of a write that the peer did not take; points into memory that outlives the connection
    size_t unsent_length;
    char *unsent_copy;  // set where `unsent` had to be copied
    int64_t chunks_left;
    nanoseconds gap, due;
    bool streaming, wants_out;
    struct connection *previous, *next;  // in the timer queue, ordered by `due`
} connection;

typedef struct {
    int64_t requests, chunks, running;
} replica_counts;

static struct {
    int port, count, tick_us;
    int64_t chunks, gap_us, ttft_us;
    int chunk_bytes;
    const char *metrics_page, *model;
} options = {.port = 22100, .count = 1, .tick_us = 1000, .chunks = 64, .chunk_bytes = 200, .model = "tiny"};

static int poll_fd;
static connection *connections[MAX_FILES];
static int listener_replica[MAX_FILES];  // replica + 1 for a listening socket
static replica_counts *replicas;
static connection *timer_head, *timer_tail;
static int64_t late_chunks;

// ---- what is served ------------------------------------------------------------------------------------------------

typedef struct {
    char *data;
    size_t length;
} text;

#define CHUNK_TEXTS 26  // gateways that guard against a model stuck on one token must see different ones
static text chunks[CHUNK_TEXTS];
#define BURST 64  // events that a stream without gaps sends as one HTTP chunk, once a tick
static text burst;
static text plain_answer, stream_head, stream_end, models_answer, health_answer, not_found;

static text make_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
static text make_text(const char *format, ...) {
    text made;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&made.data, format, arguments);
    va_end(arguments);
    if (length < 0) die("out of memory");
    made.length = (size_t)length;
    return made;
}

static text answer(const char *status, const char *type, const char *body) {
    return make_text(
        "HTTP/1.1 %s\r\nserver: uvicorn\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n%s", status, type, strlen(body), body);
}

static text stream_event(const char *content, const char *finish_reason) {
    return make_text(
        "data: {\"id\":\"chatcmpl-5d1cbb7ee3c04d0a\",\"object\":\"chat.completion.chunk\",\"created\":1796071807,"
        "\"model\":\"%s\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"},\"finish_reason\":%s}]}\n\n",
        options.model, content, finish_reason);
}

static text framed(text event) { return make_text("%zx\r\n%s\r\n", event.length, event.data); }

// An event of `chunk_bytes` in all: its content is padded with one letter.
static text padded_event(char letter) {
    size_t bare = stream_event("", "null").length;
    size_t padding = options.chunk_bytes > (int)bare ? (size_t)options.chunk_bytes - bare : 1;
    char *content = must(calloc(1, padding + 1));
    memset(content, letter, padding);
    text event = stream_event(content, "null");
    free(content);
    return event;
}

static text make_burst(void) {
    text event = padded_event('z'), events = {must(calloc(BURST, event.length + 1)), 0};
    for (int i = 0; i < BURST; i++, events.length += event.length)
        memcpy(events.data + events.length, event.data, event.length);
    return framed(events);
}

static void prepare_answers(void) {
    text body = make_text(
        "{\"id\":\"chatcmpl-98cf7d3ea7bb55fc\",\"object\":\"chat.completion\",\"created\":1796071807,\"model\":\"%s\","
        "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Once upon a time there was a stub.\"},"
        "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":160,\"completion_tokens\":9,\"total_tokens\":169}}",
        options.model);
    plain_answer = answer("200 OK", "application/json", body.data);
    stream_head = make_text(
        "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        "transfer-encoding: chunked\r\n\r\n");
    for (int i = 0; i < CHUNK_TEXTS; i++) chunks[i] = framed(padded_event((char)('a' + i)));
    burst = make_burst();
    text last = framed(stream_event("", "\"stop\""));
    stream_end = make_text("%se\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", last.data);
    body = make_text(
        "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\",\"created\":1796071806,\"owned_by\":\"vllm\","
        "\"max_model_len\":131072}]}",
        options.model);
    models_answer = answer("200 OK", "application/json", body.data);
    health_answer = answer("200 OK", "application/json", "");
    not_found = answer("404 Not Found", "application/json", "{\"detail\":\"Not Found\"}");
}

// ---- the metrics page: recorded, with the three samples that move kept live ----------------------------------------

#define FIELD 14  // width of a live value; leading zeros are valid in the format
static text page;
static struct {
    const char *name;
    size_t at;
} live[] = {{"\nvllm:num_requests_running{", 0}, {"\nvllm:num_requests_waiting{", 0}, {"\nvllm:generation_tokens_total{", 0}};

static void put_live(int i, int64_t value) {
    char field[FIELD + 1];
    snprintf(field, sizeof field, "%0*" PRId64 ".0", FIELD - 2, value);
    memcpy(page.data + live[i].at, field, FIELD);
}

// Widens the live values of the recorded page to FIELD characters and remembers where they are.
static void prepare_page(void) {
    size_t length;
    char *recorded = options.metrics_page ? read_file(options.metrics_page, &length) : strdup("\n");
    for (size_t i = 0; i < sizeof live / sizeof *live; i++) {
        char *line = strstr(recorded, live[i].name);
        if (!line) continue;
        char *value = strstr(line, "} ") + 2, *rest = strchr(value, '\n');
        text widened = make_text("%.*s%0*d%s", (int)(value - recorded), recorded, FIELD, 0, rest);
        free(recorded);
        recorded = widened.data;
    }
    page = make_text(
        "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/plain; version=1.0.0; charset=utf-8\r\n"
        "content-length: %zu\r\n\r\n%s",
        strlen(recorded), recorded);
    free(recorded);
    for (size_t i = 0; i < sizeof live / sizeof *live; i++) {
        char *line = strstr(page.data, live[i].name);
        if (line) live[i].at = (size_t)(strstr(line, "} ") + 2 - page.data);
    }
}

static void refresh_page(const replica_counts *counts) {
    int64_t values[] = {counts->running, 0, counts->chunks};
    for (int i = 0; i < 3; i++)
        if (live[i].at) put_live(i, values[i]);
}

// ---- timers: one list ordered by due time, walked from its tail because nearly every new time is the latest --------

static void schedule(connection *c) {
    connection *after = timer_tail;
    while (after && after->due > c->due) after = after->previous;
    c->previous = after;
    c->next = after ? after->next : timer_head;
    *(c->next ? &c->next->previous : &timer_tail) = c;
    *(after ? &after->next : &timer_head) = c;
}

static void unschedule(connection *c) {
    if (!c->previous && timer_head != c) return;
    *(c->next ? &c->next->previous : &timer_tail) = c->previous;
    *(c->previous ? &c->previous->next : &timer_head) = c->next;
    c->previous = c->next = NULL;
}

// ---- connections ---------------------------------------------------------------------------------------------------

static void watch(connection *c, bool out) {
    if (c->wants_out == out) return;
    struct epoll_event event = {.events = EPOLLIN | (out ? EPOLLOUT : 0u), .data.fd = c->fd};
    epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &event);
    c->wants_out = out;
}

static void forget(connection *c) {
    unschedule(c);
    if (c->streaming) replicas[c->replica].running--;
    connections[c->fd] = NULL;
    close(c->fd);
    free(c->in.data);
    free(c->unsent_copy);
    free(c);
}

// Sends what can be sent now and keeps the rest. False where the peer is gone. `lasting`: `data` needs no copy.
static bool put(connection *c, const char *data, size_t length, bool lasting) {
    ssize_t sent = send(c->fd, data, length, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) return false;
    if (sent < 0) sent = 0;
    if ((size_t)sent == length) return true;
    c->unsent_length = length - (size_t)sent;
    c->unsent = data + sent;
    if (!lasting) {
        free(c->unsent_copy);
        c->unsent = c->unsent_copy = memcpy(must(malloc(c->unsent_length)), data + sent, c->unsent_length);
    }
    watch(c, true);
    return true;
}

static bool put_text(connection *c, text t) { return put(c, t.data, t.length, true); }

static void end_stream(connection *c) {
    c->streaming = false;
    replicas[c->replica].running--;
}

// Sends the stream's next chunk, or a burst of them where it has no gap. False where the peer is gone.
static bool advance(connection *c, nanoseconds now) {
    if (!c->streaming || c->unsent_length) return true;
    if (!c->chunks_left) {
        end_stream(c);
        return put_text(c, stream_end);
    }
    bool many = !c->gap && c->chunks_left >= BURST;
    if (now - c->due > LATE && c->gap) late_chunks++;
    c->chunks_left -= many ? BURST : 1;
    replicas[c->replica].chunks += many ? BURST : 1;
    if (!put_text(c, many ? burst : chunks[c->chunks_left % CHUNK_TEXTS])) return false;
    if (c->unsent_length) return true;
    c->due = c->due + c->gap > now ? c->due + c->gap : now + 1;  // after now, so that others have their turn
    schedule(c);
    return true;
}

// ---- requests ------------------------------------------------------------------------------------------------------

// The number after `name` ("gap_us=") in the body, or `otherwise`.
static int64_t steered(const char *body, size_t length, const char *name, int64_t otherwise) {
    const char *found = memmem(body, length, name, strlen(name));
    return found ? strtoll(found + strlen(name), NULL, 10) : otherwise;
}

static bool start_stream(connection *c, const char *body, size_t length) {
    c->streaming = true;
    replicas[c->replica].running++;
    c->chunks_left = steered(body, length, "chunks=", options.chunks);
    c->gap = steered(body, length, "gap_us=", options.gap_us) * MICROSECOND;
    c->due = now_ns() + steered(body, length, "ttft_us=", options.ttft_us) * MICROSECOND;
    if (!put_text(c, stream_head)) return false;
    schedule(c);
    return true;
}

static bool post(connection *c, const char *body, size_t length) {
    replicas[c->replica].requests++;
    bool stream = memmem(body, length, "\"stream\":true", 13) || memmem(body, length, "\"stream\": true", 14);
    return stream ? start_stream(c, body, length) : put_text(c, plain_answer);
}

static bool put_stats(connection *c) {
    int64_t requests = 0, chunks = 0, running = 0;
    for (int i = 0; i < options.count; i++) {
        requests += replicas[i].requests;
        chunks += replicas[i].chunks;
        running += replicas[i].running;
    }
    text body = make_text(
        "{\"requests\":%" PRId64 ",\"chunks\":%" PRId64 ",\"open_streams\":%" PRId64 ",\"late_chunks\":%" PRId64 "}", requests,
        chunks, running, late_chunks);
    text made = answer("200 OK", "application/json", body.data);
    bool good = put(c, made.data, made.length, false);
    free(body.data);
    free(made.data);
    return good;
}

static bool asks(const connection *c, const char *target) { return !strncmp(c->in.data + 4, target, strlen(target)); }

static bool get(connection *c) {
    if (asks(c, "/metrics")) {
        refresh_page(&replicas[c->replica]);
        return put(c, page.data, page.length, false);
    }
    if (asks(c, "/health")) return put_text(c, health_answer);
    if (asks(c, "/v1/models")) return put_text(c, models_answer);
    if (asks(c, "/stats")) return put_stats(c);
    return put_text(c, not_found);
}

// The length of the first whole request in the buffer, 0 where it is not complete. *body gets where its body begins.
static size_t request_length(const buffer *in, size_t *body) {
    const char *end = memmem(in->data, in->length, "\r\n\r\n", 4);
    if (!end) return 0;
    *body = (size_t)(end + 4 - in->data);
    const char *length = header(in->data, *body, "content-length:");
    if (length) {
        size_t whole = *body + strtoul(length, NULL, 10);
        return whole <= in->length ? whole : 0;
    }
    if (!header(in->data, *body, "transfer-encoding:")) return *body;
    chunk_decoder decoder = {0};
    const char *payload;
    size_t size, used = *body;
    while (used < in->length && decoder.state != CHUNKS_DONE)
        used += decode_chunk(&decoder, in->data + used, in->length - used, &payload, &size);
    return decoder.state == CHUNKS_DONE ? used : 0;
}

// Answers every whole request in the buffer, one at a time. False where the peer is gone.
static bool serve(connection *c) {
    while (!c->streaming && !c->unsent_length && c->in.length) {
        size_t body = 0, length = request_length(&c->in, &body);
        if (!length) return true;
        bool is_post = !strncmp(c->in.data, "POST", 4);
        if (!(is_post ? post(c, c->in.data + body, length - body) : get(c))) return false;
        consume(&c->in, length);
    }
    return true;
}

static bool read_some(connection *c) {
    reserve(&c->in, READ_SIZE);
    ssize_t got = recv(c->fd, c->in.data + c->in.length, c->in.capacity - c->in.length - 1, 0);
    if (got < 0) return errno == EAGAIN;
    if (got == 0) return false;
    c->in.length += (size_t)got;
    c->in.data[c->in.length] = 0;
    return true;
}

static bool write_rest(connection *c) {
    const char *data = c->unsent;
    size_t length = c->unsent_length;
    c->unsent_length = 0;
    if (!put(c, data, length, true)) return false;
    if (c->unsent_length) return true;
    watch(c, false);
    c->due = now_ns();  // a reader that held the stream up is no sign of a busy machine
    return advance(c, c->due);
}

static void handle(connection *c, uint32_t events) {
    bool good = !(events & EPOLLIN) || read_some(c);
    if (good && c->unsent_length && events & EPOLLOUT) good = write_rest(c);
    if (good && !(events & (EPOLLERR | EPOLLHUP))) good = serve(c);
    if (!good || events & (EPOLLERR | EPOLLHUP)) forget(c);
}

static void run_timers(nanoseconds now) {
    while (timer_head && timer_head->due <= now) {
        connection *c = timer_head;
        unschedule(c);
        if (!advance(c, now) || !serve(c)) forget(c);
    }
}

// ---- sockets and start ---------------------------------------------------------------------------------------------

static void accept_all(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        if (fd >= MAX_FILES) {
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        connection *c = connections[fd] = must(calloc(1, sizeof *c));
        c->fd = fd;
        c->replica = listener_replica[listener] - 1;
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event);
    }
}

static void listen_on(int replica) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)(options.port + replica)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 4096)) die("listen");
    listener_replica[fd] = replica + 1;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event);
}

static void parse_options(int count, char **arguments) {
    enum { PORT = 1, COUNT, CHUNKS, CHUNK_BYTES, GAP, TTFT, TICK, PAGE, MODEL };
    static const struct option names[] = {
        {"port", 1, 0, PORT},     {"count", 1, 0, COUNT}, {"chunks", 1, 0, CHUNKS}, {"chunk-bytes", 1, 0, CHUNK_BYTES},
        {"gap-us", 1, 0, GAP},    {"ttft-us", 1, 0, TTFT}, {"tick-us", 1, 0, TICK}, {"metrics-page", 1, 0, PAGE},
        {"model", 1, 0, MODEL}, {0}};
    for (int name; (name = getopt_long(count, arguments, "", names, NULL)) != -1;) {
        switch (name) {
            case PORT: options.port = atoi(optarg); break;
            case COUNT: options.count = atoi(optarg); break;
            case CHUNKS: options.chunks = atoll(optarg); break;
            case CHUNK_BYTES: options.chunk_bytes = atoi(optarg); break;
            case GAP: options.gap_us = atoll(optarg); break;
            case TTFT: options.ttft_us = atoll(optarg); break;
            case TICK: options.tick_us = atoi(optarg); break;
            case PAGE: options.metrics_page = optarg; break;
            case MODEL: options.model = optarg; break;
            default:
                fprintf(stderr,
                        "usage: upstream [--port P] [--count N] [--chunks N] [--chunk-bytes B] [--gap-us G] [--ttft-us T]\n"
                        "                [--tick-us T] [--metrics-page FILE] [--model NAME]\n");
                exit(2);
        }
    }
}

// The next multiple of the tick: chunks due within one tick leave together, as the tokens of an engine's step do.
static nanoseconds next_tick(nanoseconds due) {
    nanoseconds tick = options.tick_us * MICROSECOND;
    return tick ? (due + tick - 1) / tick * tick : due;
}

int main(int count, char **arguments) {
    parse_options(count, arguments);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1000);
    replicas = must(calloc((size_t)options.count, sizeof *replicas));
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    prepare_answers();
    prepare_page();
    for (int i = 0; i < options.count; i++) listen_on(i);
    struct epoll_event events[MAX_EVENTS];
    for (;;) {
        struct timespec timeout;
        nanoseconds due = timer_head ? next_tick(timer_head->due) : NEVER;
        int ready = epoll_pwait2(poll_fd, events, MAX_EVENTS, wait_until(due, &timeout), NULL);
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            if (listener_replica[fd]) accept_all(fd);
            else if (connections[fd]) handle(connections[fd], events[i].events);
        }
        nanoseconds now = now_ns();
        if (timer_head && next_tick(timer_head->due) <= now) run_timers(now);
    }
}
