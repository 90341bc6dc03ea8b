// SPDX-License-Identifier: Apache-2.0
// One pipeline that feeds several devices: element k belongs to device k mod R, whichever asks
// first (tf.data's MultiDeviceIterator).
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <vector>

#include "cohort/core/device.h"
#include "cohort/core/export.h"
#include "cohort/data/element.h"
#include "cohort/data/iterator.h"
#include "cohort/input/device_memory.h"

namespace cohort {

// Which turns an element that fails uses up. In tf it is that of the element's device, which alone
// sees the error.
enum class ErrorTurn : std::uint8_t {
  round,  // the turns of all devices in its round; the error is thrown once
  none,   // no turn: the source has already dropped the rest of the round
};

struct MultiDeviceOptions {
  // How many elements are copied ahead for each device that does not read host memory; 0: each when
  // asked for.
  std::int64_t buffer_size = 1;
  bool fetch_to_device = true;
  ErrorTurn error_turn = ErrorTurn::round;
  std::shared_ptr<const input::DeviceMemory> memory = input::libtorch_memory();
};

// Distributes elements on the caller's thread, without a thread of its own. Elements of a device
// that does not ask wait for it. Used from one thread at a time.
class COHORT_API MultiDeviceIterator {
 public:
  // A device listed twice gets two turns.
  MultiDeviceIterator(std::unique_ptr<data::ElementSource> source, std::vector<Device> devices,
                      MultiDeviceOptions options = {});

  // has() says whether device i has a next element, without copying it; it has none once the
  // pipeline has ended and all elements of the device are taken. front() copies and returns its
  // fields, valid until the next call, or nullptr; after an error in copying the element stays.
  // pop() removes it. The first of them that meets the error of an element throws it, once.
  bool has(std::size_t i);
  const Fields* front(std::size_t i);
  void pop(std::size_t i);

  // undelivered(): the elements not taken yet, in order. requeue() starts over with such elements
  // in place of the present ones.
  std::vector<Fields> undelivered() const;
  void requeue(std::vector<Fields> elements);
  data::ElementSource& source() { return *source_; }

 private:
  // An element in host memory and, once copied, on its device.
  struct Item {
    std::uint64_t number;  // device number mod R
    Fields host;
    Fields device = {};
    bool is_fetched = false;
  };
  bool deal_one();
  void discard_round();
  void fetch(std::size_t i, Item& item) const;
  void fetch_ahead(std::size_t i);

  std::unique_ptr<data::ElementSource> source_;
  std::vector<Device> devices_;
  MultiDeviceOptions options_;
  std::vector<bool> is_fetching_;
  std::vector<std::deque<Item>> queues_;
  std::uint64_t num_assigned_ = 0;
  bool is_at_end_ = false;
  // Met while copying ahead; thrown when its turn comes.
  std::exception_ptr error_ahead_;
};

}  // namespace cohort
