// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/strategy_worker_process.h"

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "cohort/cluster/cluster_resolver.h"
#include "tests/conformance/strategy_workers.h"

namespace cohort::conformance::strategy {
namespace {

// The next line; nothing at the end.
std::optional<std::string> line_from(std::FILE* stream) {
  std::string line;
  for (int byte = std::getc(stream); byte != EOF; byte = std::getc(stream)) {
    if (byte == '\n') return line;
    line.push_back(static_cast<char>(byte));
  }
  return {};
}

void say(const Json& message) {
  std::printf("%s\n", message.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  std::fflush(stdout);
}

}  // namespace

int work_as_process(int socket) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> orders(::fdopen(socket, "r"), &std::fclose);
  const std::optional<std::string> order = orders ? line_from(orders.get()) : std::nullopt;
  if (!order) return 1;
  const Json work = Json::parse(*order);
  say("ready");
  if (!line_from(orders.get())) return 1;
  const TfConfigResolver resolver;
  std::unique_ptr<StrategyCase> test;  // until the others have ended their steps
  Verdict verdict;
  try {
    test = std::make_unique<StrategyCase>(
        member(work, "case"),
        WorkerPlace{&resolver, member(work, "worker").get<std::size_t>(),
                    member(work, "count").get<int>(), member(work, "backend").get<GroupBackend>()});
    verdict = run_steps(*test, work["case"], [](std::size_t step) { say(step); });
  } catch (const std::exception& error) {
    verdict = {Status::failed, error.what()};
  }
  say(Json::array({verdict.status, verdict.text}));
  line_from(orders.get());
  return 0;
}

}  // namespace cohort::conformance::strategy
