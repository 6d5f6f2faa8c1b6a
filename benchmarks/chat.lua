-- wrk script: sends the raw request in REQUEST_FILE, numbered anew each time, and prints one JSON line at the end.
local requests, next_request = {}, 0

function init(_)
    local file = assert(io.open(os.getenv("REQUEST_FILE"), "rb"))
    local template = file:read("*a")
    file:close()
    for i = 0, tonumber(os.getenv("DISTINCT")) - 1 do
        requests[i] = template:gsub("@SEQUENCE", string.format("%09d", i))
    end
end

function request()
    next_request = (next_request + 1) % (#requests + 1)
    return requests[next_request]
end

function done(summary, latency, _)
    local errors = summary.errors
    io.write(string.format(
        '{"requests":%d,"seconds":%.6f,"refused":%d,"broken":%d,"p50_us":%d,"p99_us":%d}\n',
        summary.requests, summary.duration / 1e6, errors.status,
        errors.connect + errors.read + errors.write + errors.timeout, latency:percentile(50), latency:percentile(99)))
end
