// SPDX-License-Identifier: Apache-2.0
// A library that a program loads first, and that sends it a SIGINT before main() begins.
#include <csignal>

namespace {
[[gnu::constructor]] void interrupt() { std::raise(SIGINT); }
}  // namespace
