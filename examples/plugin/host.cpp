// SPDX-License-Identifier: Apache-2.0
// A larger program that was there before: a simulator of throws, without LibTorch. It loads a
// plugin that learns which throws hit the target, and unloads it when it has the answer.
//   cohort launch --workers 2 --ps 1 -- ./plugin_host ./libplugin_trainer.so
#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "trainer.h"

namespace {

// The same throws in every task: the generator has a fixed seed.
void simulate(long count, std::vector<float>& angle_and_speed, std::vector<float>& is_hit) {
  std::mt19937 random(7);
  const auto uniform = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(random()) / 4294967296.0;
  };
  for (long i = 0; i < count; ++i) {
    const double angle = uniform(0.2, 1.4), speed = uniform(5, 25);
    const double range = speed * speed * std::sin(2 * angle) / 9.81;
    angle_and_speed.insert(angle_and_speed.end(),
                           {static_cast<float>(angle), static_cast<float>(speed)});
    is_hit.push_back(range > 15 && range < 35 ? 1.0F : 0.0F);
  }
}

}  // namespace

int main(int argc, char** argv) {
  void* plugin = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
  void* symbol = plugin != nullptr ? dlsym(plugin, "trainer_run") : nullptr;
  if (symbol == nullptr) {
    return std::fprintf(stderr, "usage: plugin_host PLUGIN; %s\n", argc == 2 ? dlerror() : ""), 64;
  }
  std::vector<float> angle_and_speed, is_hit;
  simulate(4000, angle_and_speed, is_hit);
  const TrainerThrows throws = {4000, angle_and_speed.data(), is_hit.data()};
  TrainerResult result = {};
  const int code = reinterpret_cast<decltype(&trainer_run)>(symbol)(&throws, &result);
  dlclose(plugin);
  if (code == 0 && result.is_chief != 0) std::printf("accuracy %.4f\n", result.accuracy);
  return code;
}
