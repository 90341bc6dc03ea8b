// SPDX-License-Identifier: Apache-2.0
// All of Cohort's public interface. Also include torch/torch.h, for modules and losses.
//
// Names in the namespaces `internal` and `detail` are not public, and may change at any time.
//
// The comment of each class says how threads may use it:
// - Thread-safe: any thread may call any method at any time.
// - Thread-compatible: several threads may call const methods at the same time, but while one calls
//   a non-const method, no other may use the object (as for the containers of std).
// - A value type: like an int. Thread-compatible; copies are independent, but may share the memory
//   of tensors.
// - A shared handle: copies refer to the same object.
//
// "Throws X" means an Error with that code (core/error.h). The README explains the words closure,
// step, program, slot, element and lost worker.
#pragma once

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/cluster/cluster_options.h"
#include "cohort/cluster/cluster_resolver.h"
#include "cohort/cluster/launchers.h"
#include "cohort/cluster/resolvers.h"
#include "cohort/collective/group.h"
#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/nest.h"
#include "cohort/core/progress_bar.h"
#include "cohort/core/run_main.h"
#include "cohort/core/text/printing.h"
#include "cohort/data/dataset.h"
#include "cohort/data/example.h"
#include "cohort/data/field_function.h"
#include "cohort/data/record_io.h"
#include "cohort/estimator/estimator.h"
#include "cohort/estimator/run_config.h"
#include "cohort/estimator/train_and_evaluate.h"
#include "cohort/estimator/training_hook.h"
#include "cohort/function/function.h"
#include "cohort/function/inspection.h"
#include "cohort/function/registry.h"
#include "cohort/metrics/metrics.h"
#include "cohort/optimizer/learning_rate_schedule.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/server/server.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/strategy/strategy.h"
#include "cohort/strategy/strategy_extended.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/train/early_stopping.h"
#include "cohort/train/evaluation.h"
#include "cohort/train/stop_signals.h"
#include "cohort/train/summary_writer.h"
#include "cohort/v1/parameter_server_strategy.h"
#include "cohort/variable/initializer.h"
#include "cohort/variable/saved_values.h"
#include "cohort/variable/variable.h"
