// SPDX-License-Identifier: Apache-2.0
// One pipeline that feeds several devices: element k belongs to device k mod R, whichever asks
// first (tf.data's MultiDeviceIterator).
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/device.h"
#include "cohort/core/export.h"
#include "cohort/data/dataset.h"
#include "cohort/data/element.h"
#include "cohort/input/device_memory.h"

namespace cohort {

// Which turns an element that fails uses up.
enum class ErrorTurn : std::uint8_t {
  device,  // the turn of the element's device, which alone sees the error (as in tf)
  round,   // the turns of all devices in its round; the error is thrown once
  none,    // no turn: the source has already dropped the rest of the round
};

struct MultiDeviceOptions {
  // How many elements are copied ahead for each device that does not read host memory; 0: each when
  // asked for.
  std::int64_t buffer_size = 1;
  bool fetch_to_device = true;
  ErrorTurn error_turn = ErrorTurn::device;
  std::shared_ptr<const input::DeviceMemory> memory = input::libtorch_memory();
};

// Distributes elements on the caller's thread, without a thread of its own. Elements of a device
// that does not ask wait for it, and so does an error in its turn (MultiDeviceOptions::error_turn).
// Used from one thread at a time.
class COHORT_API MultiDeviceIterator {
 public:
  // A device listed twice gets two turns.
  MultiDeviceIterator(std::unique_ptr<data::ElementSource> source, std::vector<Device> devices,
                      MultiDeviceOptions options = {});
  MultiDeviceIterator(const Dataset& dataset, std::vector<Device> devices,
                      MultiDeviceOptions options = {});

  std::size_t num_devices() const { return devices_.size(); }
  const ElementSpec& element_spec() const { return source_->spec(); }
  // The next element of device i; nullopt once the pipeline has ended and all elements of the
  // device are taken, and ever after. If its next element failed, throws that error once.
  std::optional<Nest> next(std::size_t i);
  data::Optional get_next_as_optional(std::size_t i);

  // next() in parts. has() says whether there is an element, without copying it. front() copies and
  // returns its fields, valid until the next call, or nullptr; after an error in copying the
  // element stays. pop() removes it. The first of them that meets the error of an element throws it
  // and removes it.
  bool has(std::size_t i);
  const Fields* front(std::size_t i);
  void pop(std::size_t i);

  // The position after the last element taken; elements copied ahead are part of it.
  void save(ByteWriter& writer) const;
  void restore(ByteReader& reader);

  // undelivered(): the elements not taken yet, in order, without errors. requeue() starts over with
  // such elements in place of the present ones.
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
    std::exception_ptr error = nullptr;  // instead of an element
  };
  bool deal_one();
  // For an exception of the source; rethrows it, unless it waits for its device's turn.
  void deal_error();
  void discard_round();
  // Whether device i has an element; draws elements until it has.
  bool fill(std::size_t i);
  void fetch(std::size_t i, Item& item) const;
  void fetch_ahead(std::size_t i);
  std::vector<const Item*> in_order() const;

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
