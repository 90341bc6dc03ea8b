// SPDX-License-Identifier: Apache-2.0
// A training that goes on after a failure of a parameter server, or of the coordinator. If a
// parameter server fails, schedule(), join() or done() throws `unavailable`, and the coordinator is
// started again; then it connects to all tasks, makes the variables, and loads the last values that
// it had saved. Here a loop takes the place of what starts a program again.
#include <cohort/cohort.h>
#include <cohort/testing/cluster/test_cluster.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>

namespace {

constexpr std::int64_t kSteps = 500, kStepsBetweenSaves = 100;

// The program, from its start to its end: trains until `steps` are done, in all starts together.
// `on_save` is told after each save how many there were.
void train(const cohort::ClusterResolver& resolver, const std::string& file, std::int64_t steps,
           const std::function<void(std::int64_t)>& on_save) {
  cohort::ParameterServerStrategy strategy(resolver, {.cluster = {.seed = 1}});
  cohort::ClusterCoordinator coordinator(strategy);
  auto model = strategy.replicate([] { return torch::nn::Linear(4, 1); });
  cohort::Adagrad optimizer(model.parameters(), {.learning_rate = 0.1});
  const cohort::Variable done = strategy.variable("done", torch::tensor(0, torch::kLong));

  // Everything from which the training goes on. The slots of optimizers are not in it yet.
  std::map<std::string, cohort::Variable> values = {{"done", done}};
  for (const cohort::Variable& each : model.variables()) values.emplace(each.name(), each);
  if (std::filesystem::exists(file)) cohort::restore_values(file, values);
  optimizer.set_iterations(done.read().item<std::int64_t>());
  std::printf("starts at step %lld\n", static_cast<long long>(optimizer.iterations()));

  const cohort::Function step([&](at::Tensor x) {
    const at::Tensor loss = (model->forward(x) - x.sum(1, true)).square().mean();
    optimizer.minimize(loss);
  });
  while (optimizer.iterations() < steps) {
    for (std::int64_t i = 0; i < kStepsBetweenSaves; ++i)
      coordinator.schedule(step, torch::randn({32, 4}));
    coordinator.join();
    done.assign(torch::tensor(optimizer.iterations()));
    cohort::save_values(file, values);
    on_save(optimizer.iterations());
  }
  const at::Tensor x = torch::ones({1, 4});
  const double guess = model.snapshot()->forward(x).item<double>();
  std::printf("has learnt that the sum is %.0f\n", guess);
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    torch::manual_seed(1);
    const std::string folder = std::filesystem::temp_directory_path() / "cohort-restart-XXXXXX";
    std::string name = folder;
    COHORT_CHECK(mkdtemp(name.data()) != nullptr, cohort::ErrorCode::internal,
                 "cannot make the folder ", folder);
    const std::string file = name + "/values.safetensors";
    cohort::testing::TestCluster cluster({.workers = 1, .ps = 2});

    try {
      train(cluster.resolver(), file, kSteps, [&](std::int64_t done) {
        if (done == 200) cluster.kill("ps:1");
      });
    } catch (const cohort::Error& error) {
      std::printf("%s at %s\n", std::string(cohort::name_of(error.code())).c_str(),
                  error.origin().c_str());
    }
    cluster.restart("ps:1");

    // The coordinator fails.
    try {
      train(cluster.resolver(), file, kSteps, [](std::int64_t done) {
        if (done == 300) throw std::runtime_error("the coordinator fails");
      });
    } catch (const std::runtime_error& error) {
      std::printf("%s\n", error.what());
    }

    train(cluster.resolver(), file, kSteps, [](std::int64_t) {});
    std::filesystem::remove_all(name);
    return 0;
  });
}
