// A load client in one thread: closed loop, or open loop at a constant rate with times taken from the planned send time.
//
// It sends the raw HTTP request in a file over keep-alive connections; "@SEQUENCE" in it becomes a nine-digit number that
// counts up to --distinct and starts again. Streamed answers are read to their end and their events counted. While it
// runs it prints one JSON line of running totals every --report-ms, at last one line of results.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
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
#define READ_SIZE 65536
#define PLACEHOLDER "@SEQUENCE"
#define PLACEHOLDER_LENGTH 9
#define SLOW_READ 512                    // bytes that a slow reader takes at a time
#define SLOW_INTERVAL (50 * MILLISECOND)  // and the time between two of its reads

typedef enum { IDLE, WAITING_HEAD, READING_BODY, READING_CHUNKS } phase;

typedef struct connection {
    int fd;
    bool slow;
    phase phase;
    buffer in;  // bytes not yet decoded
    size_t body_left, unsent;
    chunk_decoder chunks;
    char last[8];      // the end of the body so far, to see "[DONE]"
    bool line_start;   // for counting events: at the beginning of a line
    bool streamed;
    int status;
    nanoseconds from, next_read, last_event;
    struct connection *next_idle;
} connection;

// A growing list of durations in nanoseconds.
typedef struct {
    uint32_t *values;
    size_t count, capacity;
} durations;

static struct {
    int port, connections, slow, report_ms, ramp_ms;
    int64_t requests, distinct;
    double rate, duration_s, warmup_s;
    const char *request, *slow_request;
} options = {.port = 8080, .connections = 64, .report_ms = 0, .distinct = 1000, .duration_s = 5};

static struct {
    int64_t sent, responses, refused, broken, connects, events, bytes;
} totals;

static int poll_fd;
static connection *connections[MAX_FILES];
static char *request, *slow_request;
static size_t request_size, slow_request_size;
static size_t places[16], place_count;
static connection *idle_head, *idle_tail;
static connection *slow_readers[MAX_FILES];
static int slow_count, open_count;
static nanoseconds start, measure_from, end;
static durations response_times, send_delays, event_gaps;

static void add(durations *d, nanoseconds value) {
    if (d->count == d->capacity) {
        d->capacity = d->capacity ? d->capacity * 2 : 1 << 16;
        d->values = must(realloc(d->values, d->capacity * sizeof *d->values));
    }
    d->values[d->count++] = value > UINT32_MAX ? UINT32_MAX : (uint32_t)(value > 0 ? value : 0);
}

static int by_value(const void *a, const void *b) {
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

static void print_durations(const char *name, durations *d) {
    qsort(d->values, d->count, sizeof *d->values, by_value);
    printf(",\"%s\":{\"count\":%zu", name, d->count);
    static const struct {
        const char *name;
        double at;
    } points[] = {{"p50", 0.5}, {"p90", 0.9}, {"p98", 0.98}, {"p99", 0.99}, {"p999", 0.999}, {"max", 1}};
    for (size_t i = 0; d->count && i < sizeof points / sizeof *points; i++)
        printf(",\"%s\":%.1f", points[i].name, d->values[(size_t)(points[i].at * (double)(d->count - 1))] / 1e3);
    printf("}");
}

// ---- sending -------------------------------------------------------------------------------------------------------

static void number_request(void) {
    char digits[PLACEHOLDER_LENGTH];
    int64_t number = totals.sent % options.distinct;
    for (int i = PLACEHOLDER_LENGTH - 1; i >= 0; i--, number /= 10) digits[i] = (char)('0' + number % 10);
    for (size_t i = 0; i < place_count; i++) memcpy(request + places[i], digits, PLACEHOLDER_LENGTH);
}

static void load_requests(void) {
    request = read_file(options.request, &request_size);
    for (char *at = request; (at = strstr(at, PLACEHOLDER)) && place_count < 16; at++) places[place_count++] = (size_t)(at - request);
    if (options.slow_request) slow_request = read_file(options.slow_request, &slow_request_size);
}

static void make_idle(connection *c) {
    c->phase = IDLE;
    c->next_idle = NULL;
    if (idle_tail) idle_tail->next_idle = c;
    else idle_head = c;
    idle_tail = c;
}

static connection *take_idle(void) {
    connection *c = idle_head;
    if (!c) return NULL;
    idle_head = c->next_idle;
    if (!idle_head) idle_tail = NULL;
    return c;
}

static void connect_one(bool slow) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1, small = 4096;
    if (fd < 0 || fd >= MAX_FILES) die("socket");
    if (slow) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)options.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) die("connect");
    connection *c = connections[fd] = must(calloc(1, sizeof *c));
    c->fd = fd;
    c->slow = slow;
    totals.connects++;
    open_count++;
    if (slow) {
        slow_readers[slow_count++] = c;
    } else {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event);
    }
    make_idle(c);
}

static void drop(connection *c) {
    for (int i = 0; c->slow && i < slow_count; i++)
        if (slow_readers[i] == c) slow_readers[i--] = slow_readers[--slow_count];
    connections[c->fd] = NULL;
    open_count--;
    close(c->fd);
    free(c->in.data);
    free(c);
}

// A connection that ended: counted as broken where an answer was due; a new one takes its place.
static void replace(connection *c) {
    bool slow = c->slow;
    if (c->phase != IDLE) totals.broken++;
    for (connection **at = &idle_head, *before = NULL; *at; before = *at, at = &(*at)->next_idle) {
        if (*at != c) continue;
        *at = c->next_idle;
        if (idle_tail == c) idle_tail = before;
        break;
    }
    drop(c);
    connect_one(slow);
}

// Requests are far smaller than a socket's buffer, so a blocking send takes them whole.
static bool send_request(connection *c, nanoseconds from) {
    bool own = c->slow && slow_request;
    if (!own) number_request();
    const char *data = own ? slow_request : request;
    size_t size = own ? slow_request_size : request_size;
    c->from = from;
    c->phase = WAITING_HEAD;
    c->last_event = 0;
    memset(c->last, 0, sizeof c->last);
    totals.sent++;
    return send(c->fd, data, size, MSG_NOSIGNAL) == (ssize_t)size;
}

// ---- receiving -----------------------------------------------------------------------------------------------------

// Counts the lines that begin with "data:" and remembers the body's end.
static void see_body(connection *c, const char *data, size_t size, nanoseconds now) {
    if (!c->streamed) return;
    int64_t before = totals.events;
    for (const char *at = data, *stop = data + size; at < stop;) {
        if (c->line_start && *at == 'd') totals.events++;
        const char *line_end = memchr(at, '\n', (size_t)(stop - at));
        c->line_start = line_end != NULL;
        at = line_end ? line_end + 1 : stop;
    }
    if (totals.events > before) {
        if (c->last_event && !c->slow && c->last_event >= measure_from) add(&event_gaps, now - c->last_event);
        c->last_event = now;
    }
    size_t keep = size < sizeof c->last ? size : sizeof c->last;
    memmove(c->last, c->last + keep, sizeof c->last - keep);
    memcpy(c->last + sizeof c->last - keep, data + size - keep, keep);
}

static bool begin_body(connection *c, size_t head_size) {
    c->status = atoi(c->in.data + 9);
    const char *type = header(c->in.data, head_size, "content-type:");
    c->streamed = type && !strncasecmp(type, "text/event-stream", 17);
    c->line_start = true;
    const char *length = header(c->in.data, head_size, "content-length:");
    c->body_left = length ? strtoul(length, NULL, 10) : 0;
    c->chunks = (chunk_decoder){0};
    c->phase = length ? READING_BODY : READING_CHUNKS;
    return length || header(c->in.data, head_size, "transfer-encoding:");
}

static void finish_response(connection *c, nanoseconds now) {
    bool whole = c->status == 200 && (!c->streamed || !memcmp(c->last, "[DONE]\n\n", 8));
    if (c->status != 200) totals.refused++;
    else if (!whole) totals.broken++;
    else totals.responses++;
    if (whole && c->from >= measure_from) add(&response_times, now - c->from);
    make_idle(c);
}

// Decodes what has come. False where it makes no sense.
static bool decode(connection *c, nanoseconds now) {
    size_t used = 0;
    if (c->phase == WAITING_HEAD) {
        const char *head_end = memmem(c->in.data, c->in.length, "\r\n\r\n", 4);
        if (!head_end) return true;
        used = (size_t)(head_end + 4 - c->in.data);
        if (!begin_body(c, used)) return false;
    }
    if (c->phase == READING_BODY) {
        size_t size = c->in.length - used < c->body_left ? c->in.length - used : c->body_left;
        see_body(c, c->in.data + used, size, now);
        used += size;
        c->body_left -= size;
        if (!c->body_left) finish_response(c, now);
    }
    while (c->phase == READING_CHUNKS && used < c->in.length) {
        const char *payload;
        size_t size;
        used += decode_chunk(&c->chunks, c->in.data + used, c->in.length - used, &payload, &size);
        if (size) see_body(c, payload, size, now);
        if (c->chunks.state == CHUNKS_DONE) finish_response(c, now);
    }
    consume(&c->in, used);
    return c->in.length == 0 || c->phase == WAITING_HEAD || c->phase == READING_CHUNKS;
}

static void receive(connection *c, size_t limit) {
    reserve(&c->in, limit);
    ssize_t got = recv(c->fd, c->in.data + c->in.length, limit, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
        replace(c);
        return;
    }
    c->in.length += (size_t)got;
    c->in.data[c->in.length] = 0;
    totals.bytes += got;
    if (c->phase == IDLE || !decode(c, now_ns())) replace(c);
}

static nanoseconds read_slowly(nanoseconds now) {
    static nanoseconds next;
    if (!slow_count) return NEVER;
    if (now < next) return next;
    for (int i = slow_count - 1; i >= 0; i--) receive(slow_readers[i], SLOW_READ);
    return next = now + SLOW_INTERVAL;
}

// ---- pacing --------------------------------------------------------------------------------------------------------

static bool more_to_send(nanoseconds now) {
    return now < end && (!options.requests || totals.sent < options.requests);
}

// Closed loop: connections are used as soon as they are free, each not before its turn in the ramp.
static nanoseconds send_closed(nanoseconds now) {
    while (open_count < options.connections) {
        nanoseconds due = start + options.ramp_ms * MILLISECOND * open_count / options.connections;
        if (due > now) break;
        connect_one(open_count < options.slow);
    }
    while (idle_head && more_to_send(now)) {
        connection *c = take_idle();
        if (!send_request(c, now)) replace(c);
    }
    return open_count < options.connections ? start + options.ramp_ms * MILLISECOND * open_count / options.connections : NEVER;
}

// Open loop: request k is due at start + k / rate. One that finds no free connection waits, and its clock runs; such a
// wait is the server's doing and no send delay, which tells how late this program itself came to run.
static nanoseconds send_open(nanoseconds now) {
    static nanoseconds starved_until;
    for (;;) {
        nanoseconds due = start + (nanoseconds)((double)totals.sent * 1e9 / options.rate);
        if (due > now) return due < end ? due : NEVER;
        if (!more_to_send(due)) return NEVER;
        connection *c = take_idle();
        if (!c) {
            starved_until = now;
            return NEVER;
        }
        if (due >= measure_from && due > starved_until) add(&send_delays, now - due);
        if (!send_request(c, due)) replace(c);
        now = now_ns();
    }
}

// ---- reports and start ---------------------------------------------------------------------------------------------

static void print_totals(nanoseconds now) {
    int64_t busy = 0;
    for (int fd = 0; fd < MAX_FILES; fd++) busy += connections[fd] && connections[fd]->phase > WAITING_HEAD;
    printf("{\"at_s\":%.6f,\"sent\":%" PRId64 ",\"responses\":%" PRId64 ",\"refused\":%" PRId64 ",\"broken\":%" PRId64
           ",\"events\":%" PRId64 ",\"bytes\":%" PRId64 ",\"open_answers\":%" PRId64,
           (double)now / 1e9, totals.sent, totals.responses, totals.refused, totals.broken, totals.events, totals.bytes, busy);
}

static nanoseconds report(nanoseconds now) {
    static nanoseconds next;
    if (!options.report_ms) return NEVER;
    if (now < next) return next;
    print_totals(now);
    puts("}");
    fflush(stdout);
    return next = now + options.report_ms * MILLISECOND;
}

static void print_results(nanoseconds now) {
    print_totals(now);
    printf(",\"final\":true,\"seconds\":%.6f", (double)(now - start) / 1e9);
    print_durations("response_us", &response_times);
    print_durations("send_delay_us", &send_delays);
    print_durations("event_gap_us", &event_gaps);
    puts("}");
}

static void parse_options(int count, char **arguments) {
    enum { PORT = 1, CONNECTIONS, RATE, DURATION, WARMUP, REQUESTS, DISTINCT, REQUEST, SLOW, SLOW_REQUEST, RAMP, REPORT };
    static const struct option names[] = {
        {"port", 1, 0, PORT},         {"connections", 1, 0, CONNECTIONS}, {"rate", 1, 0, RATE},
        {"duration-s", 1, 0, DURATION}, {"warmup-s", 1, 0, WARMUP},       {"requests", 1, 0, REQUESTS},
        {"distinct", 1, 0, DISTINCT}, {"request", 1, 0, REQUEST},         {"slow", 1, 0, SLOW},
        {"slow-request", 1, 0, SLOW_REQUEST}, {"ramp-ms", 1, 0, RAMP},    {"report-ms", 1, 0, REPORT},
        {0}};
    for (int name; (name = getopt_long(count, arguments, "", names, NULL)) != -1;) {
        switch (name) {
            case PORT: options.port = atoi(optarg); break;
            case CONNECTIONS: options.connections = atoi(optarg); break;
            case RATE: options.rate = atof(optarg); break;
            case DURATION: options.duration_s = atof(optarg); break;
            case WARMUP: options.warmup_s = atof(optarg); break;
            case REQUESTS: options.requests = atoll(optarg); break;
            case DISTINCT: options.distinct = atoll(optarg); break;
            case REQUEST: options.request = optarg; break;
            case SLOW: options.slow = atoi(optarg); break;
            case SLOW_REQUEST: options.slow_request = optarg; break;
            case RAMP: options.ramp_ms = atoi(optarg); break;
            case REPORT: options.report_ms = atoi(optarg); break;
            default: options.request = NULL; optind = count;
        }
    }
    if (options.request) return;
    fprintf(stderr,
            "usage: load --request FILE [--port P] [--connections N] [--rate PER_S] [--duration-s S] [--warmup-s S]\n"
            "            [--requests N] [--distinct N] [--slow N] [--slow-request FILE] [--ramp-ms M] [--report-ms M]\n");
    exit(2);
}

static nanoseconds earliest(nanoseconds a, nanoseconds b) { return a < b ? a : b; }

static bool finished(nanoseconds now) {
    return now >= end || (options.requests && totals.responses + totals.refused + totals.broken >= options.requests);
}

int main(int count, char **arguments) {
    parse_options(count, arguments);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1000);
    load_requests();
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (!options.ramp_ms)
        for (int i = 0; i < options.connections; i++) connect_one(i < options.slow);
    start = now_ns();
    measure_from = start + (nanoseconds)(options.warmup_s * 1e9);
    end = start + (nanoseconds)(options.duration_s * 1e9);
    struct epoll_event events[MAX_EVENTS];
    for (nanoseconds now = start; !finished(now); now = now_ns()) {
        nanoseconds due = options.rate > 0 ? send_open(now) : send_closed(now);
        due = earliest(earliest(due, end), earliest(read_slowly(now), report(now)));
        struct timespec timeout;
        int ready = epoll_pwait2(poll_fd, events, MAX_EVENTS, wait_until(due, &timeout), NULL);
        for (int i = 0; i < ready; i++)
            if (connections[events[i].data.fd]) receive(connections[events[i].data.fd], READ_SIZE);
    }
    print_results(now_ns());
}
