// SPDX-License-Identifier: Apache-2.0
// The same from C++: owners for the two kinds of object.  c++ one.cpp $(pkg-config --cflags --libs dedit)
#include <dedit.h>

#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>

namespace {

struct Free {
    void operator()(dedit_client *c) const { dedit_client_free(c); }
    void operator()(dedit_request *r) const { dedit_request_free(r); }
};
using Client = std::unique_ptr<dedit_client, Free>;
using Request = std::unique_ptr<dedit_request, Free>;

[[noreturn]] void fail(const dedit_error &e)
{
    throw std::runtime_error(std::string(dedit_error_name(e.code)) + ": " + e.msg);
}

Client connect()
{
    dedit_error e{};
    dedit_client *c = nullptr;
    if (dedit_client_connect(nullptr, &c, &e) < 0)
        fail(e);
    return Client(c);
}

Request submit(const Client &c, const dedit_options &o)
{
    dedit_error e{};
    dedit_request *r = nullptr;
    if (dedit_client_submit(c.get(), &o, &r, &e) < 0)
        fail(e);
    return Request(r);
}

} // namespace

int main(int argc, char **argv)
try {
    Client client = connect();
    dedit_options o;
    dedit_options_init(&o, sizeof o);
    o.text = argc > 1 ? argv[1] : "The capital of France is";
    o.temperature = 0;
    o.max_tokens = 32;
    Request request = submit(client, o);
    dedit_event ev{};
    dedit_error e{};
    for (;;) {
        int n = dedit_request_next(request.get(), &ev, -1, &e);
        if (n < 0)
            fail(e);
        if (ev.type == DEDIT_EVENT_TOKENS)
            std::cout << std::string(ev.text, ev.text_len) << std::flush;
        else if (ev.type == DEDIT_EVENT_FAILED)
            throw std::runtime_error(ev.error_message);
        else if (ev.type == DEDIT_EVENT_FINISHED)
            break;
    }
    std::cout << '\n';
    return 0;
} catch (const std::exception &e) {
    std::cerr << e.what() << '\n';
    return 1;
}
