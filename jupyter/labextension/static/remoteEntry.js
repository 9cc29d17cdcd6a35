/* The GPUs of the current kernel in JupyterLab's status bar.
 *
 * A module federation container by hand: JupyterLab calls init with its shared modules, then get.
 * Knows: JupyterLab's shared modules, the two handlers of nodemgr_jupyter. Must not know: nodemgr.
 * All text from the server is set as textContent: names and commands may hold HTML.
 */
(() => {
  'use strict';
  const NAME = 'nodemgr-jupyter';
  const POLL_MS = 2000;
  const WAITING_POLL_MS = 1000;
  let shared = {};

  async function load(name) {
    const [entry] = Object.values(shared[name] || {});
    if (!entry) {
      throw new Error(`${NAME}: this JupyterLab has no module ${name}`);
    }
    return (await entry.get())();
  }

  function element(tag, text, style) {
    const made = document.createElement(tag);
    if (text !== undefined) {
      made.textContent = text;
    }
    Object.assign(made.style, style || {});
    return made;
  }

  /** Asks the server of this page, with Jupyter's own token and XSRF cookie. */
  function asker(services, coreutils) {
    const settings = services.ServerConnection.makeSettings();
    return async (path, init) => {
      const url = coreutils.URLExt.join(settings.baseUrl, 'nodemgr', path);
      const answer = await services.ServerConnection.makeRequest(url, init || {}, settings);
      const body = await answer.json();
      if (!answer.ok) {
        throw new Error(body.message || answer.statusText);
      }
      return body;
    };
  }

  function section(title, headings, rows) {
    const made = element('section');
    made.append(element('h3', title, { margin: '8px 0 4px', fontSize: 'inherit' }));
    if (!rows.length) {
      made.append(element('p', 'None.', { margin: '0' }));
      return made;
    }
    const table = element('table', undefined, { borderCollapse: 'collapse' });
    const head = element('tr');
    for (const text of headings) {
      const cell = element('th', text, { textAlign: 'left', padding: '1px 12px 1px 0' });
      cell.scope = 'col';
      head.append(cell);
    }
    table.append(head);
    for (const row of rows) {
      const line = element('tr', undefined, { fontWeight: row.mine ? 'bold' : 'normal' });
      for (const content of row.cells) {
        const cell = element('td', undefined, {
          padding: '1px 12px 1px 0',
          maxWidth: '40em',
          overflow: 'hidden',
          textOverflow: 'ellipsis',
          whiteSpace: 'nowrap'
        });
        cell.append(content);
        line.append(cell);
      }
      table.append(line);
    }
    made.append(table);
    return made;
  }

  /** The panel's contents for a view; `act(id, question)` releases after a question. */
  function contents(view, act) {
    const made = element('div');
    made.append(element('p', view.title, { margin: '0', maxWidth: '60em' }));
    if (!view.env) {
      return made;
    }
    const button = (id, verb, question) => {
      const found = element('button', verb);
      found.className = 'jp-mod-styled';
      found.setAttribute('aria-label', `${verb} ${id}`);
      found.onclick = () => act(id, question);
      return found;
    };
    const warnings = view.gpus.map(row => row.warning).filter(text => text);
    made.append(
      ...warnings.map(text => element('p', text, { margin: '0.5em 0 0', maxWidth: '60em' })),
      section(
        'GPUs',
        ['GPU', 'Memory in use', 'Utilization', 'Held by'],
        view.gpus.map(row => ({
          mine: row.mine,
          cells: [row.name, row.memory, row.utilization, row.holders]
        }))
      ),
      section(
        `Tasks of ${view.env}`,
        ['Task', 'GPUs', 'Command', 'Action'],
        view.tasks.map(row => ({
          mine: row.mine,
          cells: [
            row.id,
            row.text,
            row.mine ? 'this kernel' : row.command,
            button(row.id, 'Release', `Release the GPUs of ${row.id}? ` +
              'Its program runs on, and its next allocation of GPU memory fails.')
          ]
        }))
      ),
      section(
        `Queue of ${view.env}`,
        ['Request', 'Place', 'Reason', 'Action'],
        view.queue.map(row => ({
          mine: row.mine,
          cells: [
            row.id,
            row.text,
            row.reason,
            row.job
              ? ''
              : button(row.id, 'Withdraw', `Take ${row.id} out of the queue?`)
          ]
        }))
      )
    );
    return made;
  }

  function activate(app, statusBar, modules) {
    const { widgets, services, coreutils, apputils } = modules;
    const ask = asker(services, coreutils);
    const button = element('button', '', {
      background: 'none',
      border: 'none',
      color: 'inherit',
      font: 'inherit',
      lineHeight: '24px',
      verticalAlign: 'top',
      cursor: 'pointer',
      padding: '0 4px'
    });
    button.type = 'button';
    button.setAttribute('aria-haspopup', 'dialog');
    const item = new widgets.Widget({ node: element('div') });
    item.id = 'nodemgr-gpu';
    item.addClass('nodemgr-gpu');
    item.node.append(button);
    let view = null;
    let timer = 0;
    let asked = 0;
    let panel = null;
    let filled = '';
    let note = '';

    const kernel = () => {
      const context = app.shell.currentWidget && app.shell.currentWidget.context;
      const session =
        (app.shell.currentWidget && app.shell.currentWidget.sessionContext) ||
        (context && context.sessionContext);
      const connection = session && session.session && session.session.kernel;
      return connection ? connection.id : null;
    };

    const draw = () => {
      const hidden = !view || (view.state === 'outside' && !kernel());
      item.node.style.display = hidden ? 'none' : '';
      if (hidden) {
        return;
      }
      button.textContent = view.text;
      button.title = view.title;
      item.node.dataset.state = view.state;
      if (panel) {
        fill();
      }
    };

    /** Redraws what has changed; the focus stays on the button of the same name. */
    const fill = () => {
      const now = JSON.stringify([view, note]);
      if (now === filled) {
        return;
      }
      filled = now;
      const focused = document.activeElement && document.activeElement.getAttribute('aria-label');
      const inside = panel.contains(document.activeElement);
      const made = contents(view, act);
      const line = element('p', note, { margin: '4px 0 0' });
      line.setAttribute('role', 'status');
      made.append(line);
      panel.replaceChildren(made);
      for (const found of inside ? made.querySelectorAll('button') : []) {
        if (found.getAttribute('aria-label') === focused) {
          found.focus();
        }
      }
    };

    const refresh = async () => {
      clearTimeout(timer);
      const number = ++asked;
      if (!document.hidden) {
        const id = kernel();
        const query = id ? `?kernel=${encodeURIComponent(id)}` : '';
        try {
          const found = await ask(`gpu${query}`);
          if (number === asked) {
            view = found;
            draw();
          }
        } catch (error) {
          if (number === asked && view) {
            view = { ...view, state: 'no_server', text: 'GPU: no server', title: String(error) };
            draw();
          }
        }
      }
      if (number === asked) {
        const period = view && view.state === 'waiting' ? WAITING_POLL_MS : POLL_MS;
        timer = setTimeout(refresh, period);
      }
    };

    const act = async (id, question) => {
      const answer = await apputils.showDialog({
        title: 'GPUs',
        body: question,
        buttons: [apputils.Dialog.cancelButton(), apputils.Dialog.warnButton({ label: 'Yes' })]
      });
      if (!answer.button.accept) {
        return;
      }
      try {
        const told = await ask('release', {
          method: 'POST',
          body: JSON.stringify({ kernel: kernel(), id })
        });
        note = told.error || '';
      } catch (error) {
        note = String(error);
      }
      await refresh();
    };

    /** Above the status bar, at the window's right edge: any width fits. */
    const open = () => {
      const above = window.innerHeight - item.node.getBoundingClientRect().top;
      panel = element('div', undefined, {
        position: 'fixed',
        right: '8px',
        bottom: `${above + 4}px`,
        zIndex: '10000',
        boxSizing: 'border-box',
        maxWidth: 'calc(100vw - 16px)',
        maxHeight: '60vh',
        overflow: 'auto',
        padding: '8px 12px',
        background: 'var(--jp-layout-color1)',
        color: 'var(--jp-ui-font-color1)',
        fontSize: 'var(--jp-ui-font-size1)',
        border: '1px solid var(--jp-border-color1)',
        boxShadow: 'var(--jp-elevation-z6)'
      });
      panel.className = 'nodemgr-panel';
      panel.tabIndex = -1;
      panel.setAttribute('role', 'dialog');
      panel.setAttribute('aria-label', 'GPUs');
      note = filled = '';
      fill();
      document.body.append(panel);
      document.addEventListener('mousedown', outside, true);
      document.addEventListener('keydown', escape, true);
      button.setAttribute('aria-expanded', 'true');
      panel.focus();
    };

    const close = () => {
      document.removeEventListener('mousedown', outside, true);
      document.removeEventListener('keydown', escape, true);
      button.setAttribute('aria-expanded', 'false');
      panel.remove();
      panel = null;
    };

    const outside = event => {
      if (!event.target.closest('.nodemgr-panel, .nodemgr-gpu, .jp-Dialog')) {
        close();
      }
    };

    const escape = event => {
      if (event.key === 'Escape' && !document.querySelector('.jp-Dialog')) {
        close();
        button.focus();
      }
    };

    button.onclick = () => {
      if (panel) {
        close();
      } else if (view) {
        open();
      }
    };

    statusBar.registerStatusItem(`${NAME}:gpu`, { item, align: 'right', rank: 50 });
    if (app.shell.currentChanged) {
      app.shell.currentChanged.connect(refresh);
    }
    document.addEventListener('visibilitychange', refresh);
    void refresh();
  }

  async function extension() {
    const names = {
      widgets: '@lumino/widgets',
      services: '@jupyterlab/services',
      coreutils: '@jupyterlab/coreutils',
      apputils: '@jupyterlab/apputils',
      statusbar: '@jupyterlab/statusbar'
    };
    const found = await Promise.all(Object.values(names).map(load));
    const modules = Object.fromEntries(Object.keys(names).map((key, at) => [key, found[at]]));
    return {
      __esModule: true,
      default: {
        id: `${NAME}:gpu`,
        description: 'The GPUs of the current kernel in the status bar.',
        autoStart: true,
        optional: [modules.statusbar.IStatusBar],
        activate: (app, statusBar) => statusBar && activate(app, statusBar, modules)
      }
    };
  }

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB[NAME] = {
    init: scope => {
      shared = scope;
    },
    get: async () => {
      const made = await extension();
      return () => made;
    }
  };
})();
