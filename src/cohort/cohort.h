// SPDX-License-Identifier: Apache-2.0
// All of Cohort's public interface. Include torch/torch.h beside it for modules and losses.
#pragma once

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/cluster/resolvers/simple_resolver.h"
#include "cohort/cluster/resolvers/tf_config_resolver.h"
#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/nest.h"
#include "cohort/core/progress_bar.h"
#include "cohort/core/run_main.h"
#include "cohort/data/dataset.h"
#include "cohort/function/function.h"
#include "cohort/function/registry.h"
#include "cohort/optimizer/adagrad.h"
#include "cohort/optimizer/adam.h"
#include "cohort/optimizer/sgd.h"
#include "cohort/server/server.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/strategy/strategy.h"
#include "cohort/variable/variable.h"
