// SPDX-License-Identifier: Apache-2.0
// Workers that have GPUs: their values travel over the CPU. Two workers share one GPU here. These
// tests are skipped where there is no GPU.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/synchronous/gpu_fixture.h"
#include "cohort/synchronous/workers/workers_fixture.h"

namespace cohort::gpu_workers {
namespace {

using testing::Devices;
using testing::expect_close_on_host;
using testing::expect_equal_copies;
using testing::kRows;
using testing::losses_of;
using testing::Mlp;
using testing::Tensors;
using testing::text_of;
using testing::words;

constexpr int kWorkers = 2;

class GpuWorkers : public testing::OnGpus {
 protected:
  using Body = std::function<Tensors(MultiWorkerMirroredStrategy&)>;
  // The result of each worker.
  static std::vector<Tensors> on_workers(const Devices& devices, const Body& body) {
    const InProcessWorkers workers(kWorkers);
    std::vector<Tensors> results(kWorkers);
    std::vector<std::exception_ptr> errors(kWorkers);
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < kWorkers; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          MultiWorkerMirroredStrategy strategy(
              workers.group(static_cast<int>(rank)),
              {.devices = devices, .timeout = std::chrono::minutes(1)});
          results[rank] = body(strategy);
        } catch (...) {
          errors[rank] = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors) EXPECT_EQ(text_of(error), "");
    return results;
  }

  // The results on the devices of the test are those on as many CPUs, on each worker.
  static void expect_as_on_cpus(const Body& body) {
    const Devices cpus = testing::cpu_devices(static_cast<int>(GetParam().size()));
    const std::vector<Tensors> expected = on_workers(cpus, body);
    for (const Tensors& got : on_workers(GetParam(), body)) expect_close_on_host(got, expected[0]);
  }

  // The rows of this worker, on its devices.
  static PerReplica<at::Tensor> own_parts(MultiWorkerMirroredStrategy& strategy,
                                          const at::Tensor& whole) {
    const Devices devices = strategy.worker_devices();
    const at::Tensor own =
        whole.tensor_split(kWorkers)[static_cast<std::size_t>(strategy.worker())];
    Tensors parts = own.tensor_split(static_cast<std::int64_t>(devices.size()));
    for (std::size_t i = 0; i < parts.size(); ++i)
      parts[i] = parts[i].to(internal::torch_device(Device::parse(devices[i])));
    return PerReplica<at::Tensor>(std::move(parts));
  }

  static std::vector<at::Tensor> batches() {
    std::vector<at::Tensor> all;
    for (int step = 0; step < 6; ++step) all.push_back(words(step));
    return all;
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, GpuWorkers, ::testing::ValuesIn(testing::gpu_devices()),
                         testing::name_of_devices);

void set_values(const std::vector<Variable>& variables) {
  at::Generator generator = at::detail::createCPUGenerator(3);
  for (const Variable& each : variables) each.assign(at::rand(*each.spec().sizes, generator) - 0.5);
}

template <class MakeOptimizer>
Tensors trained(MultiWorkerMirroredStrategy& strategy, const std::vector<at::Tensor>& batches,
                const std::function<PerReplica<at::Tensor>(const at::Tensor&)>& parts_of,
                MakeOptimizer make) {
  const auto model = strategy.replicate([] { return Mlp(); });
  set_values(model.parameters());
  const auto optimizer = make(model);
  for (const at::Tensor& batch : batches) {
    strategy.run(
        [&](const at::Tensor& x) {
          optimizer.minimize(average_loss(losses_of(model->forward(x))));
        },
        parts_of(batch));
  }
  expect_equal_copies(strategy, model.parameters());
  return testing::values_of(model.variables());
}

TEST_P(GpuWorkers, OptimizersTrainAsOnCpus) {
  const std::vector<at::Tensor> all = batches();
  const auto each = [&](auto make) {
    expect_as_on_cpus([&](MultiWorkerMirroredStrategy& strategy) {
      return trained(
          strategy, all, [&](const at::Tensor& x) { return own_parts(strategy, x); }, make);
    });
  };
  each([](const auto& m) { return SGD(m.parameters(), {.learning_rate = 0.1, .momentum = 0.9}); });
  each([](const auto& m) { return Adam(m.parameters(), {.learning_rate = 0.01, .eps = 1e-3}); });
  each([](const auto& m) {
    return TorchOptimizer(m, [](Tensors parameters) {
      return torch::optim::Adam(std::move(parameters), torch::optim::AdamOptions(0.01).eps(1e-3));
    });
  });
}

TEST_P(GpuWorkers, ValuesAreCombinedAsOnCpus) {
  expect_as_on_cpus([](MultiWorkerMirroredStrategy& strategy) {
    const Variable mean =
        strategy.variable("mean", at::zeros({2}), {.aggregation = VariableAggregation::mean});
    const Variable sum = strategy.variable("sum", at::zeros({2}),
                                           {.synchronization = VariableSynchronization::on_read,
                                            .aggregation = VariableAggregation::sum});
    const PerReplica<at::Tensor> reduced = strategy.run([&] {
      const ReplicaContext replica = *get_replica_context();
      const at::Tensor own =
          at::full({2}, 1.0 + replica.replica_id_in_sync_group(), mean.tensor().options());
      mean.assign(own);
      sum.assign_add(own);
      return replica.all_reduce(ReduceOp::sum, own);
    });
    return Tensors{mean.read(), sum.read(), strategy.reduce(ReduceOp::sum, reduced),
                   strategy.gather(reduced, 0)};
  });
}

}  // namespace
}  // namespace cohort::gpu_workers
