/* The three calls that a record costs, compiled: produce(), its report, poll(0).

   Each takes the common case only, and decides it as its Python version does (sending.py, polling.py: the
   reasons stand there). Everything else goes to that version, with the arguments as they came. Where a
   decision changes, both change; the tests of the Producer run on both.

   Only CPython's API: librdkafka is called by confluent-kafka's methods. No bytecode runs between the steps
   here, so no signal handler and no other thread comes in between, but in what is called: librdkafka's
   produce() (handlers, where there are headers), its poll(), callbacks, finalizers.

   Reports are no objects of the garbage collector: only librdkafka holds them, where it cannot look. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "structmember.h"
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#ifndef SOURCE
#define SOURCE 0u /* the CRC-32 of this file: tests see whether what is built is today's */
#endif
#define PREFIX 21 /* bytes of a stamp before the sequence number */
#define LONG_KEY 64 /* bytes of a key from which zlib's own CRC-32 is the quicker one */
#define MULTIPLIER 1640531527u

enum { TOPIC, VALUE, KEY, PARTITION, CALLBACK, ON_DELIVERY, TIMESTAMP, HEADERS, ARGUMENTS };
static PyObject *arguments[ARGUMENTS], *zero, *anywhere;
static PyObject *monotonic, *offset_, *lease_until, *collecting, *forked, *timeout;
static uint32_t crc_table[256];

/* -- the slots of Python's objects -------------------------------------------------------------- */

enum { OPEN, SENT, DONE, W_TOPIC, W_PARTITION, STAMP_PREFIX, GOOD_UNTIL, IDENTITY, LAST_NUMBER, LAST_OFFSET,
       SEGMENT, PARENT, NEXT_SEQUENCE, BOUNDS, WRITERS, SLOTS };
static const char *const slot_names[SLOTS] = {
    "open", "sent", "done", "topic", "partition", "stamp_prefix", "good_until", "identity", "last_number",
    "last_offset", "segment", "parent", "next_sequence", "bounds", "writers"};
static Py_ssize_t slot_at[SLOTS];
static PyTypeObject *writer_type, *send_state_type; /* RouteWriter has the first ones, PartitionSendState the rest */
#define SLOT(object, slot) (*(PyObject **)((char *)(object) + slot_at[slot]))

static int learn_slots(PyObject *type, PyTypeObject **known, int from, int to)
{
    if (!PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "a class is needed");
        return -1;
    }
    for (int i = from; i < to; i++) {
        PyObject *member = PyObject_GetAttrString(type, slot_names[i]);
        if (!member) return -1;
        if (!Py_IS_TYPE(member, &PyMemberDescr_Type)) {
            PyErr_Format(PyExc_TypeError, "%s is no slot", slot_names[i]);
            Py_DECREF(member);
            return -1;
        }
        slot_at[i] = ((PyMemberDescrObject *)member)->d_member->offset;
        Py_DECREF(member);
    }
    Py_INCREF(type);
    Py_XDECREF((PyObject *)*known);
    *known = (PyTypeObject *)type;
    return 0;
}

static void set_slot(PyObject *object, int slot, PyObject *value) /* takes the reference */
{
    PyObject *before = SLOT(object, slot);
    SLOT(object, slot) = value;
    Py_XDECREF(before);
}

static PyObject *plus(PyObject *number, long by)
{
    long long value = PyLong_AsLongLong(number);
    return value == -1 && PyErr_Occurred() ? NULL : PyLong_FromLongLong(value + by);
}

/* -- what is called ------------------------------------------------------------------------------ */

#define MOST 15
typedef struct {
    PyObject_HEAD
    vectorcallfunc run;
    unsigned long thread; /* of inside(): whose record is on its way to librdkafka; 0: no one's */
    Py_ssize_t many;
    PyObject *has[MOST]; /* has[0]: what everything else goes to */
} Call;

enum { SLOWLY, ONLY_ERRORS, WRAPPED, NAMES, CLOCK, CLOCK_ID, WRITER_TYPE, SEND_STATE_TYPE, REPORT_HAS };
enum { PYTHON, SEND, REPORT, PLAIN_REPORT, STATE, ROUTES, PLAIN, TAKE, GIVE, WANTED, HEADER, DEFAULT, HELPERS,
       ONLY_STAMP, INSIDE, PRODUCE_HAS };
enum { POLL_PYTHON, POLL, POLL_STATE, QUEUE, RUN_QUEUED, WAITING, IN_CALLBACKS, TAKEN, POLL_TAKE, POLL_GIVE,
       POLL_HAS };

enum { PLAIN_PYTHON, PLAIN_ONLY_ERRORS, PLAIN_STATE, PLAIN_HAS };

typedef struct {
    PyObject_HEAD
    Call *by; /* what makes report() or plain_report() of it */
    PyObject *send_state, *writer, *sequence, *callback, *every; /* plain: the callback only */
} Bound;

static int call_traverse(Call *self, visitproc visit, void *arg)
{
    for (Py_ssize_t i = 0; i < self->many; i++) Py_VISIT(self->has[i]);
    return 0;
}
static PyObject *cleared(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    PyErr_SetString(PyExc_ReferenceError, "the Producer is gone");
    return NULL;
}
static int call_clear(Call *self)
{
    self->run = cleared;
    for (Py_ssize_t i = 0; i < self->many; i++) Py_CLEAR(self->has[i]);
    return 0;
}
static void call_dealloc(Call *self)
{
    PyObject_GC_UnTrack(self);
    call_clear(self);
    PyObject_GC_Del(self);
}
static PyMemberDef call_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(Call, has), READONLY, "The Python version."}, {NULL}};
static PyTypeObject CallType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kpsplit.producer._fast.Call",
    .tp_basicsize = sizeof(Call),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_dealloc = (destructor)call_dealloc,
    .tp_traverse = (traverseproc)call_traverse,
    .tp_clear = (inquiry)call_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Call, run),
    .tp_members = call_members,
};

static Call *new_call(vectorcallfunc run, PyObject *given, Py_ssize_t many)
{
    Call *self;
    if (PyTuple_GET_SIZE(given) != many) {
        PyErr_Format(PyExc_TypeError, "%zd arguments are needed", many);
        return NULL;
    }
    if (!(self = PyObject_GC_New(Call, &CallType))) return NULL;
    self->run = run;
    self->thread = 0;
    self->many = many;
    memset(self->has, 0, sizeof self->has);
    for (Py_ssize_t i = 0; i < many; i++) {
        self->has[i] = PyTuple_GET_ITEM(given, i);
        Py_INCREF(self->has[i]);
    }
    PyObject_GC_Track((PyObject *)self);
    return self;
}

static int now(Call *report, double *seconds) /* by its name: a simulation shows another clock */
{
    PyObject *clock = PyDict_GetItemWithError(report->has[NAMES], monotonic), *read;
    long id = PyLong_AsLong(report->has[CLOCK_ID]);
    struct timespec at;
    if (clock == report->has[CLOCK] && id >= 0 && clock_gettime((clockid_t)id, &at) == 0) {
        *seconds = (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
        return 0;
    }
    if (!clock) {
        if (!PyErr_Occurred()) PyErr_SetObject(PyExc_NameError, monotonic);
        return -1;
    }
    Py_INCREF(clock);
    read = PyObject_CallNoArgs(clock);
    Py_DECREF(clock);
    if (!read) return -1;
    *seconds = PyFloat_AsDouble(read);
    Py_DECREF(read);
    return *seconds == -1.0 && PyErr_Occurred() ? -1 : 0;
}

static int is_taken(PyObject *take) /* 1: the lock is ours; 0: it was not free */
{
    PyObject *token = PyObject_CallNoArgs(take);
    if (!token) PyErr_Clear();
    Py_XDECREF(token);
    return token != NULL;
}

static void give_back(PyObject *give) /* whatever was raised */
{
    PyObject *kind, *error, *trace, *done;
    PyErr_Fetch(&kind, &error, &trace);
    if (!(done = PyObject_CallOneArg(give, Py_None))) PyErr_WriteUnraisable(give);
    Py_XDECREF(done);
    PyErr_Restore(kind, error, trace);
}

static int is_attribute(PyObject *object, PyObject *name) /* whether it is true; -1: an error */
{
    PyObject *value = PyObject_GetAttr(object, name);
    int found = value ? PyObject_IsTrue(value) : -1;
    Py_XDECREF(value);
    return found;
}

/* -- reports ------------------------------------------------------------------------------------- */

/* Rule (a): acknowledged under a valid lease, and its segment is open and not fenced. */
static PyObject *take_report(Call *self, PyObject *send_state, PyObject *writer, PyObject *sequence,
                             PyObject *callback, PyObject *every, PyObject *error, PyObject *message)
{
    PyObject *record, *result;
    if (!PyObject_TypeCheck(writer, writer_type)) return PyErr_Format(PyExc_TypeError, "no writer of this class");
    if (error == Py_None) {
        double at, good_until;
        if (now(self, &at) < 0) return NULL;
        if ((good_until = PyFloat_AsDouble(SLOT(writer, GOOD_UNTIL))) == -1.0 && PyErr_Occurred()) return NULL;
        if (at < good_until) {
            PyObject *done = plus(SLOT(writer, DONE), 1), *offset;
            if (!done) return NULL;
            set_slot(writer, DONE, done);
            Py_INCREF(sequence);
            set_slot(writer, LAST_NUMBER, sequence);
            if (!(offset = PyObject_CallMethodNoArgs(message, offset_))) return NULL;
            set_slot(writer, LAST_OFFSET, offset);
            if (callback == Py_None || self->has[ONLY_ERRORS] == Py_True) Py_RETURN_NONE;
            if (SLOT(writer, IDENTITY) == Py_True) Py_INCREF(message);
            else if (!(message = PyObject_CallFunctionObjArgs(self->has[WRAPPED], message, SLOT(writer, SEGMENT),
                                                              SLOT(writer, PARENT), NULL))) return NULL;
            PyObject *given[3] = {NULL, Py_None, message};
            result = PyObject_Vectorcall(callback, given + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
            Py_DECREF(message);
            if (!result) return NULL;
            Py_DECREF(result);
            Py_RETURN_NONE;
        }
    }
    if (!(record = PyTuple_Pack(5, send_state, writer, sequence, callback, every))) return NULL;
    result = PyObject_CallFunctionObjArgs(self->has[SLOWLY], record, error, message, NULL);
    Py_DECREF(record);
    return result;
}

static PyObject *report(Call *self, PyObject *const *given, size_t many, PyObject *names)
{
    PyObject *part[5];
    if (names || PyVectorcall_NARGS(many) != 3)
        return PyErr_Format(PyExc_TypeError, "report(record, error, message) is needed");
    if (!PyArg_UnpackTuple(given[0], "record", 5, 5, part, part + 1, part + 2, part + 3, part + 4)) return NULL;
    return take_report(self, part[0], part[1], part[2], part[3], part[4], given[1], given[2]);
}

static PyObject *take_plain(Call *self, PyObject *callback, PyObject *error, PyObject *message)
{
    PyObject *given[4] = {NULL, callback, error, message};
    int collects = is_attribute(self->has[PLAIN_STATE], collecting);
    if (collects < 0) return NULL;
    if (collects || self->has[PLAIN_ONLY_ERRORS] == Py_True)
        return PyObject_Vectorcall(self->has[PLAIN_PYTHON], given + 1, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    return PyObject_Vectorcall(callback, given + 2, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
}

static PyObject *plain_report(Call *self, PyObject *const *given, size_t many, PyObject *names)
{
    if (names || PyVectorcall_NARGS(many) != 3)
        return PyErr_Format(PyExc_TypeError, "plain_report(callback, error, message) is needed");
    return take_plain(self, given[0], given[1], given[2]);
}

static PyObject *bound_call(Bound *self, PyObject *given, PyObject *names)
{
    PyObject *error, *message;
    if (!PyArg_UnpackTuple(given, "report", 2, 2, &error, &message)) return NULL;
    if (self->writer)
        return take_report(self->by, self->send_state, self->writer, self->sequence, self->callback, self->every,
                           error, message);
    return take_plain(self->by, self->callback, error, message);
}
static void bound_dealloc(Bound *self)
{
    Py_XDECREF(self->by);
    Py_XDECREF(self->send_state);
    Py_XDECREF(self->writer);
    Py_XDECREF(self->sequence);
    Py_XDECREF(self->callback);
    Py_XDECREF(self->every);
    PyObject_Free(self);
}
static PyMemberDef bound_members[] = {
    {"__func__", T_OBJECT, offsetof(Bound, by), READONLY, "As a method's."}, {NULL}};
static PyTypeObject BoundType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kpsplit.producer._fast.Bound",
    .tp_basicsize = sizeof(Bound),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)bound_dealloc,
    .tp_call = (ternaryfunc)bound_call,
    .tp_members = bound_members,
};

static PyObject *bind(Call *by, PyObject *send_state, PyObject *writer, PyObject *sequence, PyObject *callback,
                      PyObject *every)
{
    Bound *self = PyObject_New(Bound, &BoundType);
    if (!self) return NULL;
#define KEEP(name) Py_XINCREF(name); self->name = name
    KEEP(by); KEEP(send_state); KEEP(writer); KEEP(sequence); KEEP(callback); KEEP(every);
    return (PyObject *)self;
}

/* -- produce() ----------------------------------------------------------------------------------- */

static int is_hashed(PyObject *crc32, PyObject *key, uint32_t *crc)
{
    const unsigned char *at = (const unsigned char *)PyBytes_AS_STRING(key), *end = at + PyBytes_GET_SIZE(key);
    if (end - at > LONG_KEY) {
        PyObject *found = PyObject_CallOneArg(crc32, key);
        if (!found) return -1;
        *crc = (uint32_t)PyLong_AsUnsignedLongMask(found);
        Py_DECREF(found);
        return 0;
    }
    for (*crc = 0xFFFFFFFFu; at < end; at++) *crc = crc_table[(*crc ^ *at) & 0xFF] ^ (*crc >> 8);
    *crc ^= 0xFFFFFFFFu;
    return 0;
}

/* The writer of a key (a new reference), NULL if there is none. */
static PyObject *writer_of(PyObject *send_state, uint32_t hash)
{
    PyObject *bounds, *writers, *writer;
    Py_ssize_t low = 0, high;
    if (!PyObject_TypeCheck(send_state, send_state_type)) return NULL;
    bounds = SLOT(send_state, BOUNDS);
    writers = SLOT(send_state, WRITERS);
    if (!PyTuple_Check(bounds) || !PyList_Check(writers)) return NULL;
    for (high = PyTuple_GET_SIZE(bounds); low < high;) {
        Py_ssize_t middle = (low + high) / 2;
        if (hash < PyLong_AsUnsignedLongMask(PyTuple_GET_ITEM(bounds, middle))) high = middle;
        else low = middle + 1;
    }
    if (low >= PyList_GET_SIZE(writers)) return NULL;
    writer = PyList_GET_ITEM(writers, low);
    if (!PyObject_TypeCheck(writer, writer_type)) return NULL;
    Py_INCREF(writer);
    return writer;
}

static PyObject *stamp_of(PyObject *prefix, PyObject *sequence)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(sequence);
    PyObject *stamp;
    if (number == (unsigned long long)-1 && PyErr_Occurred()) return NULL;
    if (!PyBytes_Check(prefix) || PyBytes_GET_SIZE(prefix) != PREFIX)
        return PyErr_Format(PyExc_ValueError, "a stamp's prefix has %d bytes", PREFIX);
    if (!(stamp = PyBytes_FromStringAndSize(NULL, PREFIX + 8))) return NULL;
    char *at = PyBytes_AS_STRING(stamp);
    memcpy(at, PyBytes_AS_STRING(prefix), PREFIX);
    for (int i = 0; i < 8; i++) at[PREFIX + i] = (char)(number >> (56 - 8 * i));
    return stamp;
}

/* All headers of a record (a new reference). */
static PyObject *stamped(Call *self, PyObject *headers, PyObject *stamp)
{
    PyObject *pair, *all, *only = self->has[ONLY_STAMP];
    if (!headers) {
        Py_INCREF(only); /* one dictionary for all: librdkafka copies it, and the lock is ours */
        if (PyDict_SetItem(only, self->has[HEADER], stamp) < 0) Py_CLEAR(only);
        return only;
    }
    if (!PyList_CheckExact(headers))
        return PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(self->has[HELPERS], 0), headers, stamp, NULL);
    if (!(pair = PyTuple_Pack(2, self->has[HEADER], stamp))) return NULL;
    if ((all = PyList_GetSlice(headers, 0, PyList_GET_SIZE(headers))) && PyList_Append(all, pair) < 0)
        Py_CLEAR(all);
    Py_DECREF(pair);
    return all;
}

/* Take back what was counted if librdkafka itself refused the record; an error is set, and stays. */
static void refused(Call *self, PyObject *send_state, PyObject *writer, PyObject *sequence, int ours_only)
{
    PyObject *kind, *error, *trace, *said, *sent;
    int is_refusal;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (trace) PyException_SetTraceback(error, trace);
    said = PyObject_CallOneArg(PyTuple_GET_ITEM(self->has[HELPERS], 1), error);
    is_refusal = said ? PyObject_IsTrue(said) : -1;
    Py_XDECREF(said);
    if (is_refusal > 0) {
        if (!(sent = plus(SLOT(writer, SENT), -1))) is_refusal = -1;
        else {
            Py_INCREF(sequence);
            set_slot(send_state, NEXT_SEQUENCE, sequence);
            set_slot(writer, SENT, sent);
            if (ours_only) {
                said = PyObject_CallOneArg(PyTuple_GET_ITEM(self->has[HELPERS], 2), error);
                if (!said) is_refusal = -1; /* what a handler raised, in place of the error */
                Py_XDECREF(said);
            }
        }
    }
    if (is_refusal < 0) {
        Py_XDECREF(kind);
        Py_XDECREF(error);
        Py_XDECREF(trace);
    } else
        PyErr_Restore(kind, error, trace);
}

static PyObject *send(Call *self, PyObject *topic, PyObject *key, PyObject *partition, PyObject *bound,
                      PyObject *headers, PyObject **given)
{
    PyObject *result = NULL;
    PyObject *all = PyTuple_Pack(8, topic, given[VALUE] ? given[VALUE] : Py_None, key ? key : Py_None,
                                 partition ? partition : anywhere, bound, Py_None,
                                 given[TIMESTAMP] ? given[TIMESTAMP] : zero, headers ? headers : Py_None);
    if (all) result = PyObject_Call(self->has[SEND], all, NULL);
    Py_XDECREF(all);
    return result;
}

/* A record of an enrolled topic (the lock is ours). NULL without an error: this is not for us. */
static PyObject *send_stamped(Call *self, PyObject *send_state, PyObject *key, uint32_t hash, PyObject *callback,
                              PyObject *headers, PyObject **given)
{
    PyObject *result = NULL, *sequence = NULL, *stamp = NULL, *every = NULL, *bound = NULL, *next = NULL;
    PyObject *sent = NULL, *writer = writer_of(send_state, hash);
    if (!writer || SLOT(writer, OPEN) != Py_True) goto done;
    sequence = SLOT(send_state, NEXT_SEQUENCE);
    Py_INCREF(sequence);
    if (!(next = plus(sequence, 1)) || !(sent = plus(SLOT(writer, SENT), 1)) ||
        !(stamp = stamp_of(SLOT(writer, STAMP_PREFIX), sequence)) || !(every = stamped(self, headers, stamp)) ||
        !(bound = bind((Call *)self->has[REPORT], send_state, writer, sequence, callback,
                       headers ? every : Py_None)))
        goto done;
    set_slot(send_state, NEXT_SEQUENCE, next); /* counted before librdkafka gets it */
    set_slot(writer, SENT, sent);
    next = sent = NULL;
    result = send(self, SLOT(writer, W_TOPIC), key, SLOT(writer, W_PARTITION), bound, every, given);
    if (!result) refused(self, send_state, writer, sequence, !headers);
done:
    Py_XDECREF(writer);
    Py_XDECREF(sequence);
    Py_XDECREF(next);
    Py_XDECREF(sent);
    Py_XDECREF(stamp);
    Py_XDECREF(every);
    Py_XDECREF(bound);
    return result;
}

/* A record of a topic that is not enrolled (the lock is ours). NULL without an error: this is not for us. */
static PyObject *send_plain(Call *self, PyObject *callback, PyObject **given)
{
    PyObject *until, *bound = callback, *result;
    double at, lease = 0;
    int known = PySet_Contains(self->has[PLAIN], given[TOPIC]);
    if (known <= 0 || !(until = PyObject_GetAttr(self->has[STATE], lease_until))) return NULL;
    lease = PyFloat_AsDouble(until);
    Py_DECREF(until);
    if (PyErr_Occurred() || now((Call *)self->has[REPORT], &at) < 0 || at >= lease) return NULL;
    if (callback == Py_None) Py_INCREF(bound);
    else if (!(bound = bind((Call *)self->has[PLAIN_REPORT], NULL, NULL, NULL, callback, NULL))) return NULL;
    result = send(self, given[TOPIC], given[KEY], given[PARTITION], bound, given[HEADERS], given);
    Py_DECREF(bound);
    return result;
}

/* Whether this thread is in the middle of a compiled produce(), which has no frame. An object of its own: what
   librdkafka has of a record knows the lock, and must not keep the Producer. */
static PyObject *inside(Call *self, PyObject *const *args, size_t flags, PyObject *names)
{
    return PyBool_FromLong(self->thread == PyThread_get_thread_ident());
}

static int are_given(PyObject *const *args, Py_ssize_t many, PyObject *names, PyObject **given)
{
    Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
    if (many > ARGUMENTS) return 0;
    for (Py_ssize_t i = 0; i < many; i++) given[i] = args[i];
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        int at = 0;
        while (at < ARGUMENTS && arguments[at] != name) at++; /* interned, as names in programs are */
        if (at == ARGUMENTS || given[at]) return 0;
        given[at] = args[many + i];
    }
    return given[TOPIC] && PyUnicode_CheckExact(given[TOPIC]);
}

static PyObject *produce(Call *self, PyObject *const *args, size_t flags, PyObject *names)
{
    PyObject *given[ARGUMENTS] = {NULL}, *callback, *routes = NULL, *key, *encoded = NULL, *result = NULL;
    Py_ssize_t many = PyVectorcall_NARGS(flags);
    uint32_t crc = 0;
    int headers = 0;
    if (!are_given(args, many, names, given) || PyList_GET_SIZE(self->has[WANTED])) goto python;
    callback = given[ON_DELIVERY] && given[ON_DELIVERY] != Py_None ? given[ON_DELIVERY]
               : given[CALLBACK] && given[CALLBACK] != Py_None     ? given[CALLBACK]
                                                                   : self->has[DEFAULT];
    key = given[KEY];
    if ((routes = PyDict_GetItemWithError(self->has[ROUTES], given[TOPIC]))) {
        Py_INCREF(routes);
        if (!key || !PyList_Check(routes) || !PyList_GET_SIZE(routes)) goto python;
        if (given[PARTITION] && !(PyLong_CheckExact(given[PARTITION]) &&
                                  PyObject_RichCompareBool(given[PARTITION], zero, Py_LT) == 1))
            goto python;
        if (PyUnicode_CheckExact(key)) {
            if (!(key = encoded = PyUnicode_AsUTF8String(key))) goto done;
        }
        if (!PyBytes_CheckExact(key) || !PyBytes_GET_SIZE(key)) goto python;
        if (is_hashed(PyTuple_GET_ITEM(self->has[HELPERS], 3), key, &crc) < 0) goto done;
        if (given[HEADERS] && (headers = PyObject_IsTrue(given[HEADERS])) < 0) goto done;
    }
    if (PyErr_Occurred()) goto python; /* it raises the same */
    if (!is_taken(self->has[TAKE])) goto python;
    ((Call *)self->has[INSIDE])->thread = PyThread_get_thread_ident();
    if (routes) {
        PyObject *send_state = PyList_GET_ITEM(routes, crc % PyList_GET_SIZE(routes));
        Py_INCREF(send_state);
        result = send_stamped(self, send_state, key, crc * MULTIPLIER, callback, headers ? given[HEADERS] : NULL,
                              given);
        Py_DECREF(send_state);
    } else
        result = send_plain(self, callback, given);
    ((Call *)self->has[INSIDE])->thread = 0;
    give_back(self->has[GIVE]);
    if (!result && !PyErr_Occurred()) goto python;
done:
    Py_XDECREF(routes);
    Py_XDECREF(encoded);
    return result;
python:
    Py_XDECREF(routes);
    Py_XDECREF(encoded);
    PyErr_Clear();
    return PyObject_Vectorcall(self->has[PYTHON], args, flags, names);
}

/* -- poll() -------------------------------------------------------------------------------------- */

static int is_at_once(PyObject *const *args, Py_ssize_t many, PyObject *names)
{
    if (names && PyTuple_GET_SIZE(names) == 1 && many == 0) many += PyTuple_GET_ITEM(names, 0) == timeout;
    else if (names && PyTuple_GET_SIZE(names)) return 0;
    if (many != 1) return 0;
    return PyFloat_CheckExact(args[0]) ? PyFloat_AS_DOUBLE(args[0]) == 0.0
                                       : PyLong_CheckExact(args[0]) && PyObject_Not(args[0]) == 1;
}

static PyObject *poll(Call *self, PyObject *const *args, size_t flags, PyObject *names)
{
    PyObject *me = NULL, *served, *more, *both, *kind, *error, *trace, *taken;
    if (!is_at_once(args, PyVectorcall_NARGS(flags), names) || PyObject_Size(self->has[QUEUE]) ||
        PySet_GET_SIZE(self->has[WAITING]) || is_attribute(self->has[POLL_STATE], forked))
        goto python;
    taken = PyObject_CallNoArgs(self->has[TAKEN]); /* whether a thread is in the middle of another call */
    Py_XDECREF(taken);
    if (taken != Py_False || !(me = PyLong_FromUnsignedLong(PyThread_get_thread_ident())) ||
        PySet_Contains(self->has[IN_CALLBACKS], me) || !is_taken(self->has[POLL_TAKE]))
        goto python;
    served = PySet_Add(self->has[IN_CALLBACKS], me) < 0 ? NULL : PyObject_CallOneArg(self->has[POLL], zero);
    PyErr_Fetch(&kind, &error, &trace);
    if (PySet_Discard(self->has[IN_CALLBACKS], me) < 0) PyErr_WriteUnraisable(me);
    PyErr_Restore(kind, error, trace);
    give_back(self->has[POLL_GIVE]);
    Py_DECREF(me);
    if (!served || !PyObject_Size(self->has[QUEUE])) return served;
    if (!(more = PyObject_CallNoArgs(self->has[RUN_QUEUED]))) {
        Py_DECREF(served);
        return NULL;
    }
    both = PyNumber_Add(served, more);
    Py_DECREF(served);
    Py_DECREF(more);
    return both;
python:
    Py_XDECREF(me);
    PyErr_Clear(); /* it raises the same */
    return PyObject_Vectorcall(self->has[POLL_PYTHON], args, flags, names);
}

/* -- the module ---------------------------------------------------------------------------------- */

static PyObject *checked(Call *self, int right)
{
    if (self && !right) {
        PyErr_SetString(PyExc_TypeError, "an argument has the wrong type");
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}
static int is_call(PyObject *object, vectorcallfunc run)
{
    return Py_IS_TYPE(object, &CallType) && ((Call *)object)->run == run;
}
static PyObject *new_report(PyObject *module, PyObject *given)
{
    Call *self = new_call((vectorcallfunc)report, given, REPORT_HAS);
    if (self && (learn_slots(self->has[WRITER_TYPE], &writer_type, 0, NEXT_SEQUENCE) < 0 ||
                 learn_slots(self->has[SEND_STATE_TYPE], &send_state_type, NEXT_SEQUENCE, SLOTS) < 0))
        Py_CLEAR(self);
    return checked(self, self && PyDict_Check(self->has[NAMES]) && PyLong_Check(self->has[CLOCK_ID]));
}
static PyObject *new_plain_report(PyObject *module, PyObject *given)
{
    return (PyObject *)new_call((vectorcallfunc)plain_report, given, PLAIN_HAS);
}
static PyObject *new_produce(PyObject *module, PyObject *given)
{
    Call *self = new_call((vectorcallfunc)produce, given, PRODUCE_HAS);
    return checked(self, self && is_call(self->has[REPORT], (vectorcallfunc)report) &&
                             is_call(self->has[PLAIN_REPORT], (vectorcallfunc)plain_report) &&
                             is_call(self->has[INSIDE], (vectorcallfunc)inside) && PyDict_Check(self->has[ROUTES]) && PySet_Check(self->has[PLAIN]) &&
                             PyList_Check(self->has[WANTED]) && PyDict_Check(self->has[ONLY_STAMP]) &&
                             PyTuple_Check(self->has[HELPERS]) && PyTuple_GET_SIZE(self->has[HELPERS]) == 4);
}
static PyObject *new_inside(PyObject *module, PyObject *given)
{
    return (PyObject *)new_call((vectorcallfunc)inside, given, 0);
}
static PyObject *new_poll(PyObject *module, PyObject *given)
{
    Call *self = new_call((vectorcallfunc)poll, given, POLL_HAS);
    return checked(self, self && PySet_Check(self->has[WAITING]) && PySet_Check(self->has[IN_CALLBACKS]));
}

static PyMethodDef functions[] = {
    {"report", new_report, METH_VARARGS,
     "report(slowly, only_errors, wrapped_one, names, clock, clock_id, writer_type, send_state_type)"},
    {"plain_report", new_plain_report, METH_VARARGS, "plain_report(python, only_errors, state)"},
    {"produce", new_produce, METH_VARARGS,
     "produce(python, send, report, plain_report, state, fast_routes, fast_plain, take, give, wanted, header, "
     "default_callback, (with_stamp, is_refusal, raise_swallowed, crc32), only_stamp, inside)"},
    {"inside", new_inside, METH_VARARGS, "inside()"},
    {"poll", new_poll, METH_VARARGS,
     "poll(python, poll, state, queue, run_queued, waiting, in_callbacks, taken, take, give)"},
    {NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_fast", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit__fast(void)
{
    static const char *const argument_names[ARGUMENTS] = {
        "topic", "value", "key", "partition", "callback", "on_delivery", "timestamp", "headers"};
    struct { PyObject **name; const char *text; } names[] = {
        {&monotonic, "monotonic"}, {&offset_, "offset"}, {&lease_until, "lease_until"}, {&collecting, "collecting"}, {&forked, "forked"},
        {&timeout, "timeout"}};
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? 0xEDB88320u ^ (crc >> 1) : crc >> 1;
        crc_table[i] = crc;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*names[i].name = PyUnicode_InternFromString(names[i].text))) return NULL;
    for (int i = 0; i < ARGUMENTS; i++)
        if (!(arguments[i] = PyUnicode_InternFromString(argument_names[i]))) return NULL;
    if (!(zero = PyLong_FromLong(0)) || !(anywhere = PyLong_FromLong(-1))) return NULL;
    if (PyType_Ready(&CallType) < 0 || PyType_Ready(&BoundType) < 0) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddObject(module, "source", PyLong_FromUnsignedLong(SOURCE)) < 0) Py_CLEAR(module);
    return module;
}
