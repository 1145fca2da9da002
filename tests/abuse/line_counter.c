/* Counts the events that sys.settrace() reports, by code object: calls, lines, returns, exceptions.
 * A trace function in Python takes most of the time of the traced program.
 */
#include <Python.h>
#include <frameobject.h>

enum { SIZE = 1 << 14 };

static struct entry {
    PyCodeObject *code;
    long events;
    int counts;
} table[SIZE];

static char *ignored;

static struct entry *find(PyCodeObject *code)
{
    size_t place = ((size_t)code >> 4) % SIZE;
    for (int n = 0; n < SIZE; n++, place = (place + 1) % SIZE) {
        struct entry *entry = &table[place];
        if (entry->code == code)
            return entry;
        if (entry->code == NULL) {
            const char *file = PyUnicode_AsUTF8(code->co_filename);
            entry->code = (PyCodeObject *)Py_NewRef((PyObject *)code);
            entry->counts = file == NULL || strncmp(file, ignored, strlen(ignored)) != 0;
            return entry;
        }
    }
    Py_FatalError("line_counter: too many functions");
}

static int on_event(PyObject *self, PyFrameObject *frame, int what, PyObject *argument)
{
    PyCodeObject *code = PyFrame_GetCode(frame);
    struct entry *entry = find(code);
    entry->events += entry->counts;
    Py_DECREF(code);
    return 0;
}

/* Begin to count in this thread, except for files whose path starts with `path`. */
void begin(const char *path)
{
    free(ignored);
    ignored = strdup(path);
    PyEval_SetTrace(on_event, NULL);
}

/* End, and return the number of events of each code object. */
PyObject *end(void)
{
    PyEval_SetTrace(NULL, NULL);
    PyObject *found = PyDict_New();
    for (int n = 0; n < SIZE; n++) {
        struct entry *entry = &table[n];
        if (entry->events != 0 && found != NULL) {
            PyObject *events = PyLong_FromLong(entry->events);
            if (events == NULL || PyDict_SetItem(found, (PyObject *)entry->code, events) < 0)
                Py_CLEAR(found);
            Py_XDECREF(events);
        }
        Py_CLEAR(entry->code);
        entry->events = 0;
    }
    return found;
}
